package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/internal/test/clitest"
)

// An interrupt ends the calls that are active, with standard input open or at its end.
func TestMCP_InterruptEndsActiveCalls(t *testing.T) {
	const calls = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"task_list"}}
`
	opened, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })

	for what, in := range map[string]io.Reader{"at its end": strings.NewReader(calls), "open": io.MultiReader(strings.NewReader(calls), opened)} {
		ctx, interrupt := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			interrupt()
			<-r.Context().Done() // the server never answers
		}))

		env := func(name string) string { return map[string]string{"HOME": t.TempDir(), "CARILLON_TOKEN": "x"}[name] }
		var out, errs strings.Builder
		code := cli.Main(ctx, []string{"mcp", "--server", server.URL, "--request-timeout", "1h"}, cli.IO{In: in, Out: &out, Err: &errs, Env: env})
		if code != 130 || !strings.Contains(out.String(), `"id":1`) || strings.Contains(out.String(), `"id":2`) {
			t.Errorf("input %s: exit code %d: %s%s", what, code, &out, &errs)
		}
		server.Close()
	}
}

// mcpCall calls a tool of "carillon mcp" as another program does, through its standard input and output: mcp WORD... -- TOOL [ARGUMENTS].
// Its answer is standard output; that of a call that fails, which ! expects, is standard error. Without TOOL it lists the tools.
func mcpCall(ts *testscript.TestScript, neg bool, args []string) {
	at := slices.Index(args, "--")
	if at < 0 {
		ts.Fatalf("usage: mcp WORD... -- TOOL [ARGUMENTS]")
	}
	words, call := append([]string{"mcp"}, args[:at]...), args[at+1:]

	ctx, cancel := context.WithTimeout(context.Background(), clitest.Patience)
	defer cancel()
	stdin, toServer := io.Pipe()
	fromServer, stdout := io.Pipe()
	ended := make(chan int)
	go func() {
		code := cli.Main(ctx, words, cli.IO{In: stdin, Out: stdout, Err: ts.Stderr(), Env: ts.Getenv, Version: "v0.0.0-test"})
		_ = stdout.Close()
		ended <- code
	}()

	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	ts.Check(err)
	text, failed := callTool(ctx, ts, session, call)
	_ = session.Close() // closes the standard input of the server
	if code := <-ended; code != 0 {
		ts.Fatalf("carillon mcp: exit code %d", code)
	}

	out := ts.Stdout()
	if failed {
		out = ts.Stderr()
	}
	_, err = io.WriteString(out, text)
	ts.Check(err)
	if failed != neg {
		ts.Fatalf("%v: failed: %t: %s", call, failed, text)
	}
}

// callTool returns the answer of a call, or the tools if call is empty.
func callTool(ctx context.Context, ts *testscript.TestScript, session *sdk.ClientSession, call []string) (text string, failed bool) {
	if len(call) == 0 {
		list, err := session.ListTools(ctx, nil)
		ts.Check(err)
		for _, t := range list.Tools {
			b, err := json.Marshal(t)
			ts.Check(err)
			text += string(b) + "\n"
		}
		return text, false
	}

	arguments := json.RawMessage("{}")
	if len(call) > 1 {
		arguments = json.RawMessage(call[1])
	}
	res, err := session.CallTool(ctx, &sdk.CallToolParams{Name: call[0], Arguments: arguments})
	if err != nil {
		return err.Error(), true
	}

	var b strings.Builder
	for _, c := range res.Content {
		b.WriteString(c.(*sdk.TextContent).Text + "\n")
	}

	return b.String(), res.IsError
}
