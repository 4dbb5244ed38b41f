"""Sign the certificates of Ray's pods. A Deployment in a namespace of its own runs this package from a
ConfigMap, as `python -m ray_signer`. It imports only the standard library, and itself by relative names.

The CA's key is in a Secret of that namespace and in this process, and nowhere else. A pod sends a request
that it signed with its own key, and a token that the cluster issued to that pod for this audience. It gets a
certificate for the addresses of that pod, whatever its request asks for.
"""
