package main

import (
	"strings"

	ucli "github.com/urfave/cli/v2"
)

// flagsFirst moves a command's flags before its targets: `lbctl drain web/s1
// --reason x` is what people type, and the flag package stops at the first
// argument that is none. What follows `--` stays.
func flagsFirst(app *ucli.App, args []string) []string {
	if len(args) < 3 {
		return args
	}
	command := app.Command(args[1])
	if command == nil || len(command.Subcommands) > 0 {
		return args
	}
	takes := map[string]bool{}
	for _, f := range command.Flags {
		_, isBool := f.(*ucli.BoolFlag)
		for _, name := range f.Names() {
			takes[name] = !isBool
		}
	}
	var flags, rest []string
	for i := 2; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if takes[name] && !joined && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	out := append([]string{args[0], args[1]}, flags...)
	return append(append(out, "--"), rest...)
}
