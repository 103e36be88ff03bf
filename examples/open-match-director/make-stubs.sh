#!/bin/sh
# Generates the Python code of Open Match's services into the folder `generated`, or into the one given.
# Needs Debian's packages protobuf-compiler, protobuf-compiler-grpc and python3-grpcio, or the same tools from elsewhere.
set -eu
here=$(dirname "$0")
out=${1:-$here/generated}
proto=$here/../../crates/proto/proto
mkdir -p "$out"
protoc --proto_path="$proto" \
  --plugin=protoc-gen-grpc="$(command -v grpc_python_plugin)" --python_out="$out" --grpc_out="$out" \
  openmatch/messages.proto openmatch/extensions.proto openmatch/frontend.proto openmatch/backend.proto \
  openmatch/query.proto openmatch/matchfunction.proto openmatch/evaluator.proto
