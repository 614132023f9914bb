package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// An answer does not tell whether a name is taken by something that the caller may not read. (For what is in namespaces, see
// TestAccess_AnswersDoNotTellWhatIsHidden.)
func TestAccess_AnswersDoNotTellWhichNamesAreTaken(t *testing.T) {
	w := newWorld(t)
	w.bind("user:nina", "namespace-admin", "default")
	w.bind("user:olga", "operator", "default")
	w.bind("user:both", "namespace-admin", "default")
	w.bind("user:both", "namespace-admin", "ops")
	w.clock.advance(time.Minute)

	// What exists has names with "taken", and what does not, with "absent".
	for _, b := range []task.Binding{
		{Name: "taken", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"other"}},
		{Name: "other.taken", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"other"}},
		{Name: "d-.taken", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"d*"}},
		{Name: "all_.taken", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"*"}},
		{Name: "cluster-taken", Role: "viewer", Subjects: []string{"user:vic"}, Cluster: true},
		{Name: "two-taken", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"default", "other"}},
	} {
		_, err := w.Bindings.Put(t.Context(), b, client.Writing{})
		must(t, err)
		w.clock.advance(time.Second)
	}

	_, err := w.Roles.Put(t.Context(), task.Role{Name: "taken", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}, client.Writing{})
	must(t, err)
	_, err = w.Namespaces.Put(t.Context(), task.Namespace{Name: "taken"}, client.Writing{})
	must(t, err)
	w.clock.advance(time.Minute)

	const inDefault = `{"role":"viewer","subjects":["user:vic"],"namespaces":["default"]}`
	const inBoth = `{"role":"viewer","subjects":["user:vic"],"namespaces":["default","ops"]}`
	until := w.clock.now().Add(time.Hour).Format(time.RFC3339)

	for _, c := range []struct{ what, method, path, body string }{
		{"bindings", "GET", "/v1/bindings/NAME", ""},
		{"bindings", "PUT", "/v1/bindings/NAME", inDefault},
		{"bindings", "DELETE", "/v1/bindings/NAME", ""},
		{"bindings of the cluster", "GET", "/v1/bindings/cluster-NAME", ""},
		{"bindings of the cluster", "PUT", "/v1/bindings/cluster-NAME", inDefault},
		{"bindings of another namespace", "PUT", "/v1/bindings/other.NAME", inDefault},
		{"bindings of another namespace", "PUT", "/v1/bindings/other.NAME", strings.Replace(inDefault, "default", "other", 1)},
		{"bindings of a prefix", "PUT", "/v1/bindings/d-.NAME", inDefault},
		{"bindings of a prefix", "PUT", "/v1/bindings/d-.NAME", strings.Replace(inDefault, "default", "d*", 1)},
		{"bindings of every namespace", "PUT", "/v1/bindings/all_.NAME", inDefault},
		{"bindings of several namespaces", "PUT", "/v1/bindings/two-NAME", inDefault},
		{"bindings of several namespaces", "PUT", "/v1/bindings/two-NAME", inBoth},
		{"bindings in a namespace", "PUT", "/v1/bindings/x", strings.Replace(inDefault, "default", "NAME", 1)},
		{"bindings in a namespace", "PUT", "/v1/bindings/NAME.x", strings.Replace(inDefault, "default", "NAME", 1)},
		{"bindings in a namespace as well", "PUT", "/v1/bindings/x", strings.Replace(inDefault, `"default"`, `"default","NAME"`, 1)},
		{"namespaces", "GET", "/v1/namespaces/NAME", ""},
		{"namespaces", "PUT", "/v1/namespaces/NAME", `{}`},
		{"namespaces", "PUT", "/v1/namespaces/NAME?dry_run=true", `{}`},
		{"namespaces", "DELETE", "/v1/namespaces/NAME", ""},
		{"roles", "PUT", "/v1/roles/NAME", `{"rules":[]}`},
		{"roles", "DELETE", "/v1/roles/NAME", ""},
		{"subjects", "POST", "/v1/subjects/user:NAME/disable", ""},
		{"subjects", "POST", "/v1/tokens", `{"subject":"user:NAME","until":"` + until + `","scope":{"role":"viewer","namespaces":["default"]}}`},
		{"rights of others", "GET", "/v1/access/can?verb=read&kind=tasks&namespace=default&subject=user:NAME", ""},
		{"rights in a namespace", "GET", "/v1/access/can?verb=read&kind=tasks&namespace=NAME", ""},
		{"nodes", "GET", "/v1/nodes/NAME", ""},
		{"node limits", "PUT", "/v1/node-limits/NAME", `{}`},
		{"node limits", "DELETE", "/v1/node-limits/NAME", ""},
	} {
		for _, who := range []string{"user:nina", "user:olga", "user:both"} {
			secret, answers := w.token(who), map[string]string{}
			for _, name := range []string{"taken", "absent"} {
				named := strings.NewReplacer("NAME", name)
				r := w.as(secret, c.method, named.Replace(c.path), named.Replace(c.body))
				answers[name] = fmt.Sprint(r.status, " ", strings.ReplaceAll(r.body, name, "NAME"))
				if r.status/100 != 4 && !strings.HasPrefix(c.path, "/v1/access/can") {
					t.Errorf("%s: %s %s by %s: %d %s", c.what, c.method, named.Replace(c.path), who, r.status, r.body)
				}
				w.clock.advance(time.Second)
			}

			if answers["taken"] != answers["absent"] {
				t.Errorf("%s: %s %s by %s: one that exists is answered\n%s\nand one that does not\n%s", c.what, c.method, c.path, who, answers["taken"], answers["absent"])
			}
		}
	}
}
