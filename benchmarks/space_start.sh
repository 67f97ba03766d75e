#!/usr/bin/env bash
# Starts the page as a hosted Space does: in an environment made by the builder's one call of pip, by a user without
# rights, from a checkout that cannot be written, with no network. Then asks it one question and stops it. Needs root.
#
#   make space-start PYTHON=python3.12
set -euo pipefail
python=$1
shift
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"

echo "installing by the builder's call on $("$python" --version)"
"$python" -m venv "$work/env"
"$work/env/bin/python" -m pip install --quiet "$@"
mkdir "$work/page"
git archive HEAD | tar --extract --directory "$work/page"
chmod -R a+rX,a-w "$work/page"
install --directory --owner 65534 --group 65534 "$work/home"

cat > "$work/question.py" <<'QUESTION'
from gradio_client import Client, handle_file

client = Client("http://127.0.0.1:7860/", verbose=False)
found = client.predict(
    handle_file("assets/examples/3-count.png"), "How many objects are there?", api_name="/compare"
)
assert found["equal"] and found["tau"] > 1, found
print(f"{found['speculative']['answer']} ({found['tau']:.1f} tokens a pass, both answers equal)")
QUESTION

cat > "$work/start.sh" <<'START'
set -euo pipefail
ip link set lo up
as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$1/home" GRADIO_TEMP_DIR="$1/home/gradio"
    PYTHONDONTWRITEBYTECODE=1 "$1/env/bin/python")
cd "$1/page"
"${as_nobody[@]}" -c "import socket; socket.create_connection(('192.0.2.1', 80), 2)" 2> /dev/null && exit 1
"${as_nobody[@]}" -c "open('written', 'w')" 2> /dev/null && exit 1
"${as_nobody[@]}" app.py &
page=$!
for _ in $(seq 120); do
    sleep 1
    health=$(curl --silent http://127.0.0.1:7860/health || true)
    [[ $health != *ready* ]] || break
done
echo "health: $health"
"${as_nobody[@]}" "$1/question.py"
kill -TERM "$page"
wait "$page"
START
unshare --net bash "$work/start.sh" "$work"
echo "ended with exit code 0"
