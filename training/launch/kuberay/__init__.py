"""`--on kuberay`: Ray on a Kubernetes cluster, created for the run by KubeRay, or a long-lived one
(`--cluster`).
"""
