package httpaction

import (
	"bytes"
	"io"
)

// FilterStandardLog returns a writer for the standard logger, without what net/http logs of its clients' connections: a
// target can send bytes that belong to no request, and net/http logs them as they are. They may contain secrets that the
// target has received.
func FilterStandardLog(to io.Writer) io.Writer { return standardLog{to} }

// unsolicited begins the message of net/http about such bytes.
var unsolicited = []byte("Unsolicited response received on idle HTTP channel")

// standardLog filters what the standard logger writes: each call of Write contains one message.
type standardLog struct{ to io.Writer }

func (l standardLog) Write(b []byte) (int, error) {
	if bytes.Contains(b, unsolicited) {
		return len(b), nil
	}
	return l.to.Write(b)
}
