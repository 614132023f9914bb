package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// checkedInput passes on the lines that are JSON-RPC messages, and answers the others with an error. The SDK ends the session at the
// first line that it cannot decode.
type checkedInput struct {
	io.Closer
	lines *bufio.Scanner
	out   io.Writer
	rest  []byte // of the current line
}

func newCheckedInput(in io.ReadCloser, out io.Writer) *checkedInput {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, sdk.DefaultMaxLineLength)

	return &checkedInput{Closer: in, lines: lines, out: out}
}

func (c *checkedInput) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if !c.lines.Scan() {
			if err := c.lines.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}

		line := c.lines.Bytes()
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}

		if refused := checkLine(line); refused != nil {
			if err := json.NewEncoder(c.out).Encode(refused); err != nil {
				return 0, err
			}
			continue
		}
		c.rest = append(slices.Clip(line), '\n')
	}

	n := copy(p, c.rest)
	c.rest = c.rest[n:]

	return n, nil
}

// refusal is the answer to a line that is not a message. Its ID is null if the line has none: a jsonrpc.Response would omit it.
type refusal struct {
	Version string         `json:"jsonrpc"`
	ID      any            `json:"id"`
	Error   *jsonrpc.Error `json:"error"`
}

// checkLine returns the answer to a line that is not a message or a batch of messages, and nil for one that is.
func checkLine(line []byte) *refusal {
	r := &refusal{Version: "2.0"}

	var call struct{ ID any }
	err := json.Unmarshal(line, &call)
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		r.Error = &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "parse error: " + err.Error()}
		return r
	}
	switch call.ID.(type) {
	case string, float64:
		r.ID = call.ID
	}

	var batch []json.RawMessage
	if json.Unmarshal(line, &batch) != nil {
		batch = []json.RawMessage{line}
	}
	if len(batch) == 0 {
		r.Error = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "invalid request: not a message"}
		return r
	}

	for _, message := range batch {
		if _, err := jsonrpc.DecodeMessage(message); err != nil {
			r.Error = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "invalid request: " + err.Error()}
			return r
		}
	}

	return nil
}

// sharedOutput is a writer for whole lines of several goroutines. It stays open when the session ends.
type sharedOutput struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *sharedOutput) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.out.Write(p)
}

func (*sharedOutput) Close() error { return nil }
