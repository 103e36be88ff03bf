# Cleans up after a test process, however it ends.
#
# The test process holds the other end of our stdin and tells us, a line at a time, what to clean up.
# When it is gone, by exit, panic, abort or kill -9, the kernel closes that end, we read to the end
# of what it managed to say, and act. Nothing here depends on the test process running any code.
#
#   folder PATH   remove PATH at the end
#   watch PID     kill the process group PID at the end
#   forget PID    PID has ended and may soon belong to somebody else
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

# A process that is being killed may still finish creating a file: insist, within reason.
for folder in "$@"; do
    tries=0
    until rm -rf -- "$folder" && [ ! -e "$folder" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || break
        sleep 0.05
    done
done
