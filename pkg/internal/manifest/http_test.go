package manifest

import "testing"

// The body of a request has the values and the order of the file.
func TestRead_KeepsTheBodyOfARequest(t *testing.T) {
	t.Parallel()

	const yaml = `name: a
schedule: "@manual"
action:
  http:
    url: https://a
    json:
      z: 1.0
      a: [12345678901234567890, null, true, "yes", 2026-01-01]
      "n": {}
      text: |
        two
        lines
`
	objects, err := Read("a.yaml", []byte(yaml), "default")
	if err == nil {
		err = objects[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}

	const want = `{"z":1.0,"a":[12345678901234567890,null,true,"yes","2026-01-01"],"n":{},"text":"two\nlines\n"}`
	if got := string(objects[0].Spec.Action.HTTP.JSON); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
