package task

import "strings"

// ActorName returns the name alone of an actor such as "ann (token k3vq7t2m5xw4hzra)",
// for a list that has no room for more.
func ActorName(actor string) string {
	if i := strings.LastIndex(actor, " ("); i > 0 && strings.HasSuffix(actor, ")") {
		return actor[:i]
	}
	return actor
}
