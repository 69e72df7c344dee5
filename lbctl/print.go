package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// print writes the results of all balancers.
func (a *action) print(jobs []*job) error {
	all := []*result{}
	for _, j := range jobs {
		all = append(all, j.results...)
	}
	switch {
	case a.output == "json":
		return printJSON(a.out, all)
	case a.output == "name":
		for _, r := range all {
			fmt.Fprintln(a.out, r.key)
		}
		return nil
	case a.dryRun:
		for _, r := range all {
			for _, c := range r.Commands {
				fmt.Fprintln(a.out, c)
			}
		}
		return nil
	}
	rows := [][]string{{"LB", "SERVER", "BEFORE", "AFTER", "SESSIONS", "CHANGED", "WHY"}}
	for _, r := range all {
		why := r.Why
		if r.Cut > 0 {
			why = fmt.Sprintf("%s: %d cut", why, r.Cut)
		}
		rows = append(rows, []string{r.LB, r.key.String(), r.Before, r.After, number(r.Sessions), strconv.FormatBool(r.Changed), why})
	}
	if len(rows) == 1 {
		return nil
	}
	return printTable(a.out, rows)
}

// number is a count, or ? for one that is not known.
func number(n *uint64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatUint(*n, 10)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func printTable(w io.Writer, rows [][]string) error {
	b := bufio.NewWriterSize(w, 64<<10) // tabwriter writes every cell by itself
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return b.Flush()
}
