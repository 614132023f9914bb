package httpaction

import (
	"errors"
	"testing"
)

func TestDescribeError_IsPlain(t *testing.T) {
	const broken = "net/http: HTTP/1.x transport connection broken: "

	a := &attempt{}
	for text, want := range map[string]string{
		broken + `malformed HTTP status code "this"`:                               `the response is not valid HTTP: malformed HTTP status code "this"`,
		broken + "net/http: server response headers exceeded 65536 bytes; aborted": "the headers of the response are larger than 64Ki",
		"net/http: server response headers exceeded 65536 bytes; aborted":          "the headers of the response are larger than 64Ki",
		"invalid byte in chunk length":                                             "the response is not valid HTTP: invalid byte in chunk length",
		"gzip: invalid header":                                                     "gzip: invalid header",
	} {
		if got := a.describeError(errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
