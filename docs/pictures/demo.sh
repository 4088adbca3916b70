#!/bin/sh
# Draws a terminal with what `inbox demo` has printed:
# cargo run --quiet -p inbox-cli -- demo | docs/pictures/demo.sh > docs/pictures/demo.svg
awk '
function text(line) {
    gsub(/&/, "\\&amp;", line); gsub(/</, "\\&lt;", line); gsub(/>/, "\\&gt;", line)
    return line
}
{ lines[NR] = $0 }
END {
    height = 20 * NR + 84
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 %d\" width=\"700\" height=\"%d\" role=\"img\"", height, height
    print " aria-label=\"A terminal after inbox demo\">"
    print "<style>text { font: 14px ui-monospace, Menlo, Consolas, \"DejaVu Sans Mono\", monospace; fill: #d4d8de; white-space: pre }"
    print ".number { fill: #ffffff; font-weight: bold } .about { fill: #8b949e } .prompt { fill: #7ee787 }</style>"
    print "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#161b22\"/>"
    print "<circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#ff5f57\"/><circle cx=\"38\" cy=\"18\" r=\"5\" fill=\"#febc2e\"/><circle cx=\"56\" cy=\"18\" r=\"5\" fill=\"#28c840\"/>"
    print "<text x=\"16\" y=\"52\"><tspan class=\"prompt\">$</tspan> inbox demo</text>"
    for (number = 1; number <= NR; number++) {
        line = lines[number]
        y = 20 * number + 54
        # A name, a number, and what it means.
        if (match(line, /  +[0-9]+/)) {
            end = RSTART + RLENGTH
            counted = substr(line, RSTART, RLENGTH)
            printf "<text x=\"16\" y=\"%d\">%s<tspan class=\"number\">%s</tspan><tspan class=\"about\">%s</tspan></text>\n", \
                y, text(substr(line, 1, RSTART - 1)), counted, text(substr(line, end))
        } else if (line != "") {
            printf "<text x=\"16\" y=\"%d\">%s</text>\n", y, text(line)
        }
    }
    print "</svg>"
}'
