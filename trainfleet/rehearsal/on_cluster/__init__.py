"""Rehearsals with real Kubernetes objects, on the built-in cluster or one from a kubeconfig context.

Only the simulated Kubernetes provider differs from other rehearsals: it sends every object to a real API
server with server-side apply, so admission, validation, RBAC, Pod Security and quotas take effect. Everything
is removed at the end.
"""
