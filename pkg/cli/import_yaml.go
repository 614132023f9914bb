package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/foreign"
	"github.com/carillonhq/carillon/pkg/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// print writes the tasks so that they can be applied; as YAML with all that is to be
// said of them in comments.
func (i *importing) print() error {
	if i.output != asTable && i.output != asWide && i.output != asYAML {
		specs := make([]task.Spec, len(i.result.Jobs))
		for n, j := range i.result.Jobs {
			specs[n] = j.Spec
		}
		return emitList(i.app, specs, func(s task.Spec) string { return i.show(ref{s.Namespace, s.Name}) }, nil)
	}
	var b bytes.Buffer
	for _, r := range i.result.Refusals {
		comment(&b, r.Place, "not taken: "+r.Why)
	}
	for _, n := range i.result.Notes {
		comment(&b, n.Place, n.Why)
	}
	for n, j := range i.result.Jobs {
		if n > 0 || b.Len() > 0 {
			b.WriteString("---\n")
		}
		comment(&b, j.Place, strings.Join(j.Notes, "\n"))
		y, err := sparse(j.Spec)
		if err != nil {
			return err
		}
		b.Write(y)
	}
	return i.app.print(b.String())
}

func comment(b *bytes.Buffer, at foreign.Place, text string) {
	fmt.Fprintf(b, "# %s", printable(at.String()))
	if text = printable(text); text != "" {
		b.WriteString(": " + strings.ReplaceAll(text, "\n", "\n#   "))
	}
	b.WriteString("\n")
}

// sparse is a task as YAML without what is so by default.
func sparse(s task.Spec) ([]byte, error) {
	std := task.Defaults()
	std.Namespace = "" // it is told which one
	is, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	was, err := json.Marshal(std)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	b, err := without(is, was)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	y, err := manifest.WriteYAML(b)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return y, nil
}

// without is an object of JSON without the fields that another one has alike, in its
// order.
func without(is, was json.RawMessage) (json.RawMessage, error) {
	var std map[string]json.RawMessage
	if err := json.Unmarshal(was, &std); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	d := json.NewDecoder(bytes.NewReader(is))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		same, known := std[key.(string)]
		if known && bytes.Equal(same, value) {
			continue
		}
		if known && value[0] == '{' && same[0] == '{' {
			if value, err = without(value, same); err != nil {
				return nil, err
			}
		}
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:%s", key, value)
	}
	return json.RawMessage("{" + out.String() + "}"), nil
}
