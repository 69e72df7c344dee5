package fsm

import (
	"fmt"
	"strings"
)

// Mermaid renders the table and each state's signals as a Mermaid state
// diagram, for the README. It ends in a newline.
func Mermaid() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> OPEN\n")
	for _, r := range Table() {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", r.From, r.To, r.Event)
	}
	b.WriteString("    CLOSED --> [*]\n")
	for _, s := range States() {
		g := s.Signals()
		fmt.Fprintf(&b, "    %s: %s<br/>LB health %d %s · ready %d · live %d<br/>agent-check %s\n",
			s, s, g.Health, g.HealthBody, g.Readiness, g.Liveness, strings.ReplaceAll(g.Word, "#", "#35;"))
	}
	return b.String()
}
