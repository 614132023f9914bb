package manifest_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

func TestFindDuplicates_NamesBothPlaces(t *testing.T) {
	var all []manifest.Object
	for file, text := range map[string]string{
		"a.yaml": "name: x\nschedule: '@daily'\naction: {noop: {}}\n---\n# x\nschedule: '@daily'\nname: y\naction: {noop: {}}\n",
	} {
		objects, err := manifest.Read(file, []byte(text), "default")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objects...)
	}

	more, err := manifest.Read("b.json", []byte(`[{"name": "x", "namespace": "other"}, {"name": ""},
{"schedule": "@daily", "name": "y"}, {"name": ""}, {"name": "y"}]`), "default")
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, err := range manifest.FindDuplicates(append(all, more...)) {
		got = append(got, err.Error())
	}

	want := `b.json:2:24: name: "y" is defined twice; also in a.yaml:7
b.json:2:53: name: "y" is defined twice; also in a.yaml:7`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
