"""A `credential_process` of the AWS SDKs: exchanges a job's token at the STS that the environment names."""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

form = {
    "Action": "AssumeRoleWithWebIdentity",
    "RoleArn": os.environ["AWS_ROLE_ARN"],
    "WebIdentityToken": Path(os.environ["AWS_WEB_IDENTITY_TOKEN_FILE"]).read_text(),
}
url = os.environ["AWS_ENDPOINT_URL_STS"]
with urllib.request.urlopen(url, urllib.parse.urlencode(form).encode(), timeout=30) as answer:
    found = {each.tag.rpartition("}")[2]: each.text for each in ElementTree.fromstring(answer.read()).iter()}
names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
sys.stdout.write(json.dumps({"Version": 1, **{name: found[name] or "" for name in names}}))
