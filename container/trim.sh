# trim.sh DIR: take out of a virtual environment what is only for building and testing.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
"$1"/bin/python -m pip uninstall -qy setuptools pip
rm -rf "$packages"/torch/include "$packages"/torch/test "$packages"/torch/share
find "$packages"/torch/bin -type f ! -name torch_shm_manager -delete
find "$packages" -name '*.a' -delete
find "$packages"/sympy "$packages"/networkx "$packages"/numpy "$packages"/mpmath \
  -type d -name tests -prune -exec rm -rf {} +
rm -f "$1"/bin/activate* "$1"/bin/Activate* "$1"/bin/pip*
# An optimizer's first step loads torch._dynamo.
"$1"/bin/python -c 'import murmurate.training.swarm, murmurate.edge.net.grpc_transport, torch._dynamo'
