package api_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
)

// The type of a problem is a link to a row of the page, which has every code.
func TestProblems_TypeIsALinkToTheCode(t *testing.T) {
	page, err := os.ReadFile("../../../docs/errors.md")
	must(t, err)

	code := regexp.MustCompile(`(?m)^\tCode\w+ += "([a-z_]+)"`)
	n := 0
	for _, dir := range []string{"../../client", "../../task"} {
		files, err := filepath.Glob(dir + "/*.go")
		must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, m := range code.FindAllStringSubmatch(string(text), -1) {
				if n++; !strings.Contains(string(page), `<a id="`+m[1]+`"></a>`) {
					t.Errorf("docs/errors.md does not have the code %s", m[1])
				}
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d codes were found", n)
	}

	w := newWorld(t)
	r := w.do(request{path: "/v1/namespaces/default/tasks/none"})
	if want := `"type":"` + client.ProblemType(client.CodeNotFound) + `"`; !strings.Contains(r.body, want) {
		t.Errorf("%s does not contain %s", r.body, want)
	}
}
