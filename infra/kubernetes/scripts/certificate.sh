# Writes a Ray pod's own certificate, signed by the platform's authority. Run by an init container that has openssl, with
# POD_IP from the downward API, the authority under /etc/ray/ca and an empty folder under /etc/ray/tls that Ray's container
# mounts too. Names of other pods are covered by the namespace's wildcard, because a head is reached by its service's name.
set -eu
authority="${RAY_CA_FOLDER:-/etc/ray/ca}"
folder="${RAY_TLS_FOLDER:-/etc/ray/tls}"
namespace="${POD_NAMESPACE:-training}"
domain="${CLUSTER_DOMAIN:-cluster.local}"
umask 077
cat > "$folder/names.cnf" <<END
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, DNS:*.$namespace, DNS:*.$namespace.svc, DNS:*.$namespace.svc.$domain, IP:127.0.0.1, IP:$POD_IP
END
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -keyout "$folder/tls.key" -out "$folder/request.pem" -subj "/O=trainfleet/CN=ray"
openssl x509 -req -in "$folder/request.pem" -CA "$authority/tls.crt" -CAkey "$authority/tls.key" -CAcreateserial -CAserial "$folder/serial" \
  -out "$folder/tls.crt" -days 365 -sha256 -extfile "$folder/names.cnf"
cp "$authority/tls.crt" "$folder/ca.crt"
# Ray's container may run as another user than this one.
chmod 644 "$folder/tls.crt" "$folder/tls.key" "$folder/ca.crt"
