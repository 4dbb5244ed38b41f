"""A `credential_process` of the AWS SDKs, for the state of a repository of Google Cloud or Azure, which is in the S3
gateway: logs in to the job's own cloud as its libraries do, and gets keys of the gateway for that token.
"""

from __future__ import annotations

import os
import sys
import urllib.request

if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    credentials.refresh(Request())
    token = credentials.token
else:
    from azure.identity import DefaultAzureCredential

    token = DefaultAzureCredential().get_token("https://storage.azure.com/.default").token
request = urllib.request.Request(
    os.environ["KEYS_OF_THE_GATEWAY"], headers={"Authorization": f"Bearer {token}"}
)
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
    sys.stdout.write(answer.read().decode())
