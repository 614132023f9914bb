package callgroup_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/callgroup"
)

func failing() error { panic("no such place") }

// recovered returns the value of a panic of f, and the stack where it began.
func recovered(f func()) (value any, stack string) {
	defer func() {
		if r := recover(); r != nil {
			v, s := callgroup.Origin(r)
			value, stack = v, string(s)
		}
	}()

	f()

	return nil, ""
}

func TestGroup_PanicGoesOnInTheCaller(t *testing.T) {
	done := false
	value, stack := recovered(func() {
		g, ctx := callgroup.WithContext(t.Context())
		g.Go(failing)
		g.Go(func() error {
			<-ctx.Done() // the panic of the other call ends the context
			done = true
			return ctx.Err()
		})
		_ = g.Wait()
	})

	if value != "no such place" || !strings.Contains(stack, "callgroup_test.failing") {
		t.Errorf("the caller panics with %v and the stack\n%s", value, stack)
	}
	if !done {
		t.Error("the caller did not wait for the other call")
	}
}

func TestGroup_NestedPanicKeepsItsStack(t *testing.T) {
	value, stack := recovered(func() { callgroup.Run(func() { callgroup.Run(func() { _ = failing() }) }) })
	if value != "no such place" || !strings.Contains(stack, "callgroup_test.failing") {
		t.Errorf("the caller panics with %v and the stack\n%s", value, stack)
	}
}

func TestGroup_ReturnsTheFirstError(t *testing.T) {
	wrong := errors.New("wrong")
	g := callgroup.New()
	g.SetLimit(1)
	g.Go(func() error { return wrong })
	g.Go(func() error { return nil })

	if err := g.Wait(); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
}

func TestStart_ReportsThePanic(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	callgroup.Start(func() { _ = failing() }, func(p *callgroup.Panic) { cancel(p) })
	<-ctx.Done()

	if err := context.Cause(ctx); !strings.Contains(err.Error(), "no such place") || !strings.Contains(err.Error(), "callgroup_test.failing") {
		t.Errorf("the panic is reported as %v", err)
	}
}

// What serves requests starts goroutines only with this package: any other goroutine would end the node with its panic.
func TestHandlers_StartGoroutinesWithCallgroup(t *testing.T) {
	for _, dir := range []string{"../internal/api", "../internal/ui", "../internal/oidclogin", "../store/eventlog", "../store/etcdadmin"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}

			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}

			for _, i := range file.Imports {
				if strings.Contains(i.Path.Value, "x/sync/errgroup") {
					t.Errorf("%s: errgroup does not recover panics: use callgroup.Group", files.Position(i.Pos()))
				}
			}

			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a panic in this goroutine would end the node: use callgroup.Start", files.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "sync" && n.Sel.Name == "WaitGroup" {
						t.Errorf("%s: a panic in a call of a WaitGroup would end the node: use callgroup.Group", files.Position(n.Pos()))
					}
				}
				return true
			})

			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
