# Cleans up after a test process, however it ends.
#
# The test process writes to the stdin of this script, one line per thing to clean up. When the test process ends
# (exit, panic, abort, kill -9), the kernel closes the pipe. The script then reads what is left in the pipe and cleans
# up. This does not depend on the test process running any code.
#
#   folder PATH   remove PATH at the end
#   watch PID     kill the process group PID at the end
#   forget PID    PID has ended; the number may be reused
trap '' HUP INT QUIT TERM
cd /
pids=
while read -r verb what; do
    case $verb in
    folder) set -- "$@" "$what" ;;
    watch) pids="$pids $what" ;;
    forget)
        left=
        for pid in $pids; do
            [ "$pid" = "$what" ] || left="$left $pid"
        done
        pids=$left
        ;;
    esac
done

for pid in $pids; do
    kill -s KILL -- "-$pid"
done

# A process that is being killed may still create a file, so retry for up to ten seconds.
for folder in "$@"; do
    tries=0
    until rm -rf -- "$folder" && [ ! -e "$folder" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || break
        sleep 0.05
    done
done
