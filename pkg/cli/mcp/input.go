package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// checkedInput passes on the lines that are JSON-RPC messages, and answers the others with an error. The SDK ends the session at the
// first line that it cannot decode, and at a batch of messages if the protocol has none any more. So each message of a batch becomes a
// line.
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

		for _, message := range splitBatch(line) {
			if refused := checkMessage(message); refused != nil {
				if err := json.NewEncoder(c.out).Encode(refused); err != nil {
					return 0, err
				}
				continue
			}
			c.rest = append(append(c.rest, message...), '\n')
		}
	}

	n := copy(p, c.rest)
	c.rest = c.rest[n:]

	return n, nil
}

// splitBatch returns the messages of a batch. Any other line is one message.
func splitBatch(line []byte) []json.RawMessage {
	var batch []json.RawMessage
	if json.Unmarshal(line, &batch) != nil || len(batch) == 0 {
		return []json.RawMessage{line}
	}

	return batch
}

// refusal is the answer to what is not a message. Its ID is null if there is none: a jsonrpc.Response would omit it.
type refusal struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   *jsonrpc.Error  `json:"error"`
}

// checkMessage returns the answer to what is not a message, and nil for a message.
func checkMessage(message []byte) *refusal {
	r := &refusal{Version: "2.0"}

	var call struct{ ID json.RawMessage }
	err := json.Unmarshal(message, &call)
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		r.Error = &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "parse error: " + err.Error()}
		return r
	}

	if _, err := jsonrpc.DecodeMessage(message); err != nil {
		if id := call.ID; len(id) > 0 && strings.IndexByte(`"-0123456789`, id[0]) >= 0 { // a string or a number
			r.ID = id
		}
		r.Error = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "invalid request: " + err.Error()}

		return r
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
