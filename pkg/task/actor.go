package task

import "strings"

// ActorName returns only the name of an actor such as "ann (token k3vq7t2m5xw4hzra)", for lists with little
// space.
func ActorName(actor string) string {
	if i := strings.LastIndex(actor, " ("); i > 0 && strings.HasSuffix(actor, ")") {
		return actor[:i]
	}
	return actor
}
