package mcp

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestCheckLine(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for line, want := range map[string]string{
		ping:                             "null",
		"[" + ping + "]":                 "null",
		`{"jsonrpc":"2.0","method":"x"}`: "null",
		`{"id":`:                         `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: unexpected end of JSON input"}}`,
		ping + " x":                      `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: invalid character 'x' after top-level value"}}`,
		`[]`:                             `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: not a message"}}`,
		`{"id":7,"method":"ping"}`:       `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"invalid request: invalid message version tag \"\"; expected \"2.0\""}}`,
	} {
		b, err := json.Marshal(checkLine([]byte(line)))
		if err != nil || string(b) != want {
			t.Errorf("%q: %s, %v, want %s", line, b, err, want)
		}
	}

	// What is valid JSON but no message keeps its ID if it has one, whatever the SDK says about it.
	for line, id := range map[string]any{"7": nil, `"x"`: nil, "null": nil, "[7]": nil, `{"jsonrpc":"2.0","id":{},"method":"x"}`: nil, `{"jsonrpc":"2.0","id":"a"}`: "a", `{"jsonrpc":"2.0","id":"a","method":7}`: "a"} {
		switch r := checkLine([]byte(line)); {
		case line == `{"jsonrpc":"2.0","id":"a"}` && r == nil: // an answer
		case r == nil || r.ID != id || r.Error.Code != jsonrpc.CodeInvalidRequest:
			t.Errorf("%s: %+v, want the id %v", line, r, id)
		}
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
