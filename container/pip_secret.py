"""pip_secret.py CONF CA FOLDERS: this machine's way to its package index, for a build inside.

Writes a pip.conf, the certificates it wants, and the folders it names, one on a line.
"""

import json
import re
import ssl
import subprocess
import sys
from pathlib import Path

# fmt: off
KEYS = {
    "index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "proxy", "cert",
    "default-timeout", "retries",
}
# fmt: on


def main(conf: Path, ca: Path, folders: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    values: dict[str, str] = {}
    for line in listed.splitlines():
        match = re.fullmatch(r"(?:global|install|:env:)\.([\w-]+)=(['\"])(.*)\2", line)
        if match and match[1] in KEYS:
            values[match[1]] = json.loads(f'"{match[3]}"').replace("\n", " ")
    certificates = Path(values.get("cert") or ssl.get_default_verify_paths().cafile or "/nowhere")
    ca.write_bytes(certificates.read_bytes() if certificates.is_file() else b"")
    if "cert" in values:
        values["cert"] = "/etc/pip.pem"
    conf.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    words = f"{values.get('extra-index-url', '')} {values.get('find-links', '')}".split()
    words += values.get("index-url", "").split()
    local = {re.sub(r"^file://", "", word) for word in words if re.match(r"file://|/", word)}
    # An index in a folder points to files beside it.
    tops = {str(Path(each).parent if Path(each).name == "simple" else Path(each)) for each in local}
    folders.write_text("".join(f"{each}\n" for each in sorted(tops) if Path(each).exists()))


main(*map(Path, sys.argv[1:4]))
