package client

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// failedTLS reports whether a call failed during the TLS handshake. Then it describes in e why, and what to do.
func (c *connection) failedTLS(e *Error, err error) bool {
	say := func(hint, format string, args ...any) bool {
		e.Code, e.Hint = CodeTLS, hint
		e.Message = c.base + fmt.Sprintf(format, args...)
		return true
	}

	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert *net.OpError
	var verify *tls.CertificateVerificationError
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return say("use --server http://…, if you trust the network", " speaks plain HTTP, not TLS")
	case errors.As(err, &unknown):
		return say("set the CA that signed its certificate: --ca-file or CARILLON_CA_FILE", " presents a certificate that is not signed by a known CA")
	case errors.As(err, &name):
		return say("use a name in the certificate, or give the node a certificate with this name", " presents a certificate for another host: %v", name)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if time.Now().Before(invalid.Cert.NotBefore) {
			return say("check the clocks of this host and of the server", " presents a certificate that is valid only from %s", invalid.Cert.NotBefore.UTC().Format(time.RFC3339))
		}
		return say("replace its certificate; the node reloads the file", " presents a certificate that expired on %s", invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verify):
		return say("", " presents a certificate that cannot be trusted: %v", verify.Err)
	case errors.As(err, &alert) && alert.Op == "remote error":
		return c.refusedBy(say, alert.Err.Error())
	}

	return false
}

// refusedBy explains an alert with which a server has rejected the client's certificate. It always returns
// true.
func (c *connection) refusedBy(say func(hint, format string, args ...any) bool, alert string) bool {
	const ours = "use a certificate that its CA signed: --cert-file and --key-file, CARILLON_CERT_FILE and CARILLON_KEY_FILE"

	switch alert = strings.TrimPrefix(alert, "tls: "); alert {
	case "certificate required":
		return say(ours, " requires a client certificate")
	case "bad certificate", "unknown certificate authority", "unknown certificate", "unsupported certificate":
		return say(ours, " rejects the client certificate: %s", alert)
	case "expired certificate":
		return say("replace the client certificate", " rejects the client certificate: it has expired")
	}

	return say("", " rejects the TLS connection: %s", alert)
}

// wantsTLS reports whether an answer shows that the server expects TLS. Then it describes that in e.
func (c *connection) wantsTLS(e *Error, res *http.Response, body []byte) bool {
	if res.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return false
	}

	e.Code, e.Status = CodeTLS, 0
	e.Message = c.base + " speaks TLS, not plain HTTP"
	e.Hint = "use --server https://" + strings.TrimPrefix(c.base, "http://")

	return true
}
