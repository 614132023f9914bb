package importer

import (
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// readObjects parses the documents of a file. What kubectl accepts and package manifest does not, which are anchors and
// large documents, is parsed as kubectl does. The lines in such a document are that of its beginning.
func readObjects(file, text string) ([]manifest.Value, error) {
	values, err := manifest.Values(file, []byte(text))
	if err == nil {
		return values, nil
	}

	values = nil
	for _, doc := range splitYAML(text) {
		list, err2 := manifest.Values(file, []byte(doc.padding()+doc.text))
		if err2 != nil {
			list, err2 = doc.readAsKubectl(file)
		}
		if err2 != nil {
			return nil, err // which has the line and, in most cases, the reason
		}

		values = append(values, list...)
	}

	return values, nil
}

// yamlDocument is a document of a file, with the number of lines before it.
type yamlDocument struct {
	text   string
	before int
}

// splitYAML splits a file at its document markers.
func splitYAML(text string) (docs []yamlDocument) {
	begin, before, n, at := 0, 0, 0, 0
	for line := range strings.Lines(text) {
		n++
		at += len(line)
		if trimmed := strings.TrimRight(line, " \t\r\n"); trimmed == "---" || trimmed == "..." {
			docs = append(docs, yamlDocument{text[begin : at-len(line)], before})
			begin, before = at, n
		}
	}

	return append(docs, yamlDocument{text[begin:], before})
}

// padding returns as many empty lines as there are before the document, so that the lines in it keep their numbers.
func (d yamlDocument) padding() string { return strings.Repeat("\n", d.before) }

// readAsKubectl parses the document with the library that kubectl uses.
func (d yamlDocument) readAsKubectl(file string) ([]manifest.Value, error) {
	converted, err := yaml.YAMLToJSONStrict([]byte(d.text))
	if err != nil || string(converted) == "null" {
		return nil, err
	}

	// Skip the comments and empty lines before the document.
	first := d.before
	for line := range strings.Lines(d.text) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && trimmed[0] != '#' {
			break
		}
		first++
	}

	return manifest.Values(file, []byte(strings.Repeat("\n", first)+string(converted)))
}
