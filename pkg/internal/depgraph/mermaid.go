package depgraph

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// escaper writes a name as the quoted text of a node. Mermaid has entities with # for what would end or format the text.
var escaper = strings.NewReplacer(`"`, "#quot;", "#", "#35;", "`", "#96;", "<", "#lt;", ">", "#gt;", "&", "#amp;", "\n", " ")

// Mermaid returns the graph as a flowchart in the language of Mermaid, from left to right. A link says which ends of the source
// count, unless it is those that succeeded.
func (g *Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")

	// A name may be a word of Mermaid, such as end, so nodes have numbers and show their name as text.
	number := map[string]int{}
	for i, name := range g.Tasks() {
		number[name] = i
		fmt.Fprintf(&b, "  t%d[\"%s\"]\n", i, escaper.Replace(name))
	}

	for _, l := range g.Links() {
		text := ""
		if l.When != "" && l.When != task.WhenSucceeded {
			text = "|" + escaper.Replace(string(l.When)) + "|"
		}
		fmt.Fprintf(&b, "  t%d -->%s t%d\n", number[l.Source], text, number[l.Dependent])
	}

	return b.String()
}
