package mcp

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestCheckMessage(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for message, want := range map[string]string{
		ping:                             "null",
		`{"jsonrpc":"2.0","method":"x"}`: "null",
		`{"jsonrpc":"2.0","id":"a"}`:     "null", // an answer
		`{"id":`:                         `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: unexpected end of JSON input"}}`,
		ping + " x":                      `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: invalid character 'x' after top-level value"}}`,
		`{"id":7,"method":"ping"}`:       `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"invalid request: invalid message version tag \"\"; expected \"2.0\""}}`,
	} {
		b, err := json.Marshal(checkMessage([]byte(message)))
		if err != nil || string(b) != want {
			t.Errorf("%q: %s, %v, want %s", message, b, err, want)
		}
	}

	// What is valid JSON but no message keeps its ID if it has one, whatever the SDK says about it.
	for message, id := range map[string]string{
		"7": "", `"x"`: "", "null": "", "[]": "", "[7]": "", `{"jsonrpc":"2.0","id":{},"method":"x"}`: "",
		`{"jsonrpc":"2.0","id":"a","method":7}`: `"a"`, `{"id":-9007199254740993}`: "-9007199254740993",
	} {
		if r := checkMessage([]byte(message)); r == nil || string(r.ID) != id || r.Error.Code != jsonrpc.CodeInvalidRequest {
			t.Errorf("%s: %+v, want the id %s", message, r, id)
		}
	}
}

// The messages of a batch become lines, and each that is not one has an answer of its own.
func TestCheckedInput_SplitsBatches(t *testing.T) {
	const ping, note = `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","method":"x"}`
	var refused strings.Builder
	in := newCheckedInput(io.NopCloser(strings.NewReader("["+ping+`, {"id":7}, `+note+", []]\n[[]]\n"+ping)), &refused)

	b, err := io.ReadAll(in)
	if want := ping + "\n" + note + "\n" + ping + "\n"; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	if got := refused.String(); strings.Count(got, "\n") != 3 || strings.Count(got, "-32600") != 3 || !strings.Contains(got, `"id":7`) {
		t.Errorf("refused: %s", got)
	}
}

// Lines longer than the buffer of the reader stay whole, also the last one without a line feed.
func TestCheckedInput_KeepsLines(t *testing.T) {
	long := `{"jsonrpc":"2.0","method":"` + strings.Repeat("x", 100_000) + `"}`
	var refused strings.Builder
	in := newCheckedInput(io.NopCloser(strings.NewReader(long+"\n\r\nbad\n"+long)), &refused)

	b, err := io.ReadAll(iotest.OneByteReader(in))
	if want := long + "\n" + long + "\n"; err != nil || string(b) != want {
		t.Errorf("%d bytes, %v, want %d", len(b), err, len(want))
	}
	if strings.Count(refused.String(), "\n") != 1 || !strings.Contains(refused.String(), "-32700") {
		t.Errorf("refused: %s", &refused)
	}
}
