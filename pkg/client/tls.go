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
		return say("give --server http://…, if you trust the network in between", " speaks plain HTTP, not TLS")
	case errors.As(err, &unknown):
		return say("give the CA that has signed its certificate: --ca-file, CARILLON_CA_FILE", " presents a certificate that no known CA has signed")
	case errors.As(err, &name):
		return say("use one of the names that it is for, or give the node a certificate with this one", " shows a certificate for another host: %v", name)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if time.Now().Before(invalid.Cert.NotBefore) {
			return say("is the clock right, here and there?", " shows a certificate that is valid only from %s on", invalid.Cert.NotBefore.UTC().Format(time.RFC3339))
		}
		return say("replace its certificate; the node takes the new file by itself", " shows a certificate that has ended on %s", invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verify):
		return say("", " shows a certificate that cannot be trusted: %v", verify.Err)
	case errors.As(err, &alert) && alert.Op == "remote error":
		return c.refusedBy(say, alert.Err.Error())
	}

	return false
}

// refusedBy explains an alert with which a server has rejected the client's certificate. It always returns
// true.
func (c *connection) refusedBy(say func(hint, format string, args ...any) bool, alert string) bool {
	const ours = "give a certificate that its CA has signed: --cert-file and --key-file, CARILLON_CERT_FILE and CARILLON_KEY_FILE"

	switch alert = strings.TrimPrefix(alert, "tls: "); alert {
	case "certificate required":
		return say(ours, " wants a client certificate")
	case "bad certificate", "unknown certificate authority", "unknown certificate", "unsupported certificate":
		return say(ours, " does not accept the client certificate: %s", alert)
	case "expired certificate":
		return say("replace the client certificate", " does not accept the client certificate: it has ended")
	}

	return say("", " refuses TLS: %s", alert)
}

// wantsTLS reports whether an answer shows that the server expects TLS. Then it describes that in e.
func (c *connection) wantsTLS(e *Error, res *http.Response, body []byte) bool {
	if res.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return false
	}

	e.Code, e.Status = CodeTLS, 0
	e.Message = c.base + " speaks TLS, not plain HTTP"
	e.Hint = "give --server https://" + strings.TrimPrefix(c.base, "http://")

	return true
}
