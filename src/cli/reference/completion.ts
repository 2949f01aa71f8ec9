import { Argument, type Command, type Option } from 'commander';
import { lookup } from '../../base/index.ts';
import { printText } from '../output/streams.ts';

const SHELLS = ['bash', 'zsh', 'fish'] as const;
type Shell = (typeof SHELLS)[number];

/** A verb or group of verbs, for shell completion. */
interface Node {
  /** The words after the program's name, such as `snapshot create`. */
  readonly path: string;
  readonly verbs: readonly { name: string; text: string }[];
  readonly options: readonly Option[];
}

/** `completion SHELL`: prints a script with all verbs and options. */
export function addCompletionVerb(program: Command): void {
  program
    .command('completion')
    .description('print a shell script that completes verbs and options')
    .addArgument(new Argument('<shell>').choices(SHELLS))
    .addHelpText(
      'after',
      `
Examples:
  $ source <(longshore completion bash)                                     # in ~/.bashrc
  $ longshore completion zsh > ~/.zfunc/_longshore                          # in a directory of fpath
  $ longshore completion fish > ~/.config/fish/completions/longshore.fish`,
    )
    .action((shell: Shell) => {
      printText(SCRIPTS[shell](nodesOf(program)));
    });
  addNamesVerb(program);
}

/** For the completion scripts. */
function addNamesVerb(program: Command): void {
  program
    .command('complete-names', { hidden: true })
    .addArgument(new Argument('<word>').choices(['backup', 'restore', 'schedule']))
    .action(async (word: 'backup' | 'restore' | 'schedule') => {
      const { printNames } = await import('../backups/names.ts');
      await printNames(word);
    });
}

function nodesOf(command: Command, path = ''): Node[] {
  const help = command.createHelp();
  const children = help.visibleCommands(command);
  const own = {
    path,
    verbs: children.map((child) => ({ name: child.name(), text: child.description() })),
    options: help.visibleOptions(command),
  };
  const below = children.flatMap((child) =>
    nodesOf(child, path === '' ? child.name() : `${path} ${child.name()}`),
  );
  return [own, ...below];
}

const flagsOf = ({ short, long }: Option): string[] =>
  [short, long].filter((flag) => flag !== undefined);

/** Verbs and options that take names of existing objects in the cluster. */
const NAMED = /^(backup|restore|schedule) (get|describe|logs|delete|cancel|pause|unpause)$/;
const NAMING_OPTIONS: Readonly<Record<string, string>> = {
  '--from-backup': '@backup',
  '--from-schedule': '@schedule',
};

/** The choices or the kind of an option's value; undefined for an option without a value. */
function valuesOf(option: Option): string | undefined {
  const { argChoices, flags, long = '', required, optional } = option;
  const named = lookup(NAMING_OPTIONS, long);
  if (named !== undefined) return named;
  if (argChoices) return argChoices.join(' ');
  if (flags.includes('<file>')) return '@files';
  if (flags.includes('<directory>')) return '@directories';
  return required || optional ? '@any' : undefined;
}

/** Shell functions for bash and zsh: words after a verb, its options, words after an option. */
function functions(nodes: readonly Node[]): string {
  const table = (name: string, rows: readonly [key: string, words: string][]): string =>
    [
      `${name}() {`,
      '  case "$1" in',
      ...rows.map(([key, words]) => `    '${key}') echo '${words}' ;;`),
      '  esac',
      '}',
    ].join('\n');
  return [
    table(
      '_longshore_verbs',
      nodes.flatMap(({ path, verbs }) =>
        verbs.length === 0 ? [] : [[path, verbs.map(({ name }) => name).join(' ')]],
      ),
    ),
    table(
      '_longshore_options',
      nodes.map(({ path, options }) => [path, options.flatMap(flagsOf).join(' ')]),
    ),
    table(
      '_longshore_names',
      nodes.flatMap(({ path }) => {
        const [, word] = NAMED.exec(path) ?? [];
        return word === undefined ? [] : [[path, `@${word}`]];
      }),
    ),
    table(
      '_longshore_values',
      nodes.flatMap(({ path, options }) =>
        options.flatMap((option) => {
          const values = valuesOf(option);
          if (values === undefined) return [];
          return flagsOf(option).map((flag): [string, string] => [`${path} ${flag}`, values]);
        }),
      ),
    ),
  ].join('\n\n');
}

const bash = (nodes: readonly Node[]): string => `# Completion of longshore for bash.

${functions(nodes)}

_longshore() {
  local current=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} verb='' word values i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    case " $(_longshore_verbs "$verb") " in *" $word "*) verb="\${verb:+$verb }$word" ;; esac
  done
  values=$(_longshore_values "$verb $before")
  COMPREPLY=()
  case "$values" in
    @any) return ;;
    @directories) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    @files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
  esac
  if [[ -z $values && $current == -* ]]; then values=$(_longshore_options "$verb"); fi
  if [[ -z $values ]]; then values=$(_longshore_verbs "$verb"); fi
  if [[ -z $values ]]; then values=$(_longshore_names "$verb"); fi
  case "$values" in @*) values=$(longshore complete-names "\${values#@}" 2>/dev/null); [[ -n $values ]] || return ;; esac
  if [[ -n $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -F _longshore longshore
`;

const zsh = (nodes: readonly Node[]): string => `#compdef longshore
# Completion of longshore for zsh.

${functions(nodes)}

_longshore() {
  local current=\${words[CURRENT]} before=\${words[CURRENT-1]} verb='' word values i
  for ((i = 2; i < CURRENT; i++)); do
    word=\${words[i]}
    case " $(_longshore_verbs "$verb") " in *" $word "*) verb="\${verb:+$verb }$word" ;; esac
  done
  values=$(_longshore_values "$verb $before")
  case "$values" in
    @any) return ;;
    @directories) _files -/; return ;;
    @files) _files; return ;;
  esac
  if [[ -z $values && $current == -* ]]; then values=$(_longshore_options "$verb"); fi
  if [[ -z $values ]]; then values=$(_longshore_verbs "$verb"); fi
  if [[ -z $values ]]; then values=$(_longshore_names "$verb"); fi
  case "$values" in @*) values=$(longshore complete-names "\${values#@}" 2>/dev/null); [[ -n $values ]] || return ;; esac
  if [[ -n $values ]]; then compadd -- \${=values}; else _files; fi
}
if [[ $funcstack[1] == _longshore ]]; then _longshore "$@"; else compdef _longshore longshore; fi
`;

const quote = (text: string): string => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;

function fish(nodes: readonly Node[]): string {
  const lines = nodes.flatMap(({ path, verbs, options }) => {
    const names = verbs.map(({ name }) => name).join(' ');
    const seen = path.split(' ').map((word) => `__fish_seen_subcommand_from ${word}`);
    const end = names === '' ? [] : [`not __fish_seen_subcommand_from ${names}`];
    const when = path === '' ? '__fish_use_subcommand' : [...seen, ...end].join('; and ');
    const start = `complete -c longshore -n ${quote(when)}`;
    return [
      ...verbs.map(({ name, text }) => `${start} -f -a ${name} -d ${quote(text)}`),
      ...options.map((option) => `${start} ${fishOption(option)}`),
    ];
  });
  const named = nodes.flatMap(({ path }) => {
    const [, word, verb] = NAMED.exec(path) ?? [];
    if (word === undefined || verb === undefined) return [];
    const when = `__fish_seen_subcommand_from ${word}; and __fish_seen_subcommand_from ${verb}`;
    return [`complete -c longshore -n ${quote(when)} -f -a ${quote(namesIn(word))}`];
  });
  return `# Completion of longshore for fish.\n\n${[...lines, ...named].join('\n')}\n`;
}

const namesIn = (word: string): string => `(longshore complete-names ${word} 2>/dev/null)`;

function fishOption(option: Option): string {
  const words = [];
  if (option.short !== undefined) words.push(`-s ${option.short.slice(1)}`);
  if (option.long !== undefined) words.push(`-l ${option.long.slice(2)}`);
  const values = valuesOf(option);
  if (values === '@backup' || values === '@schedule') {
    words.push(`-x -a ${quote(namesIn(values.slice(1)))}`);
  } else if (values?.startsWith('@') === false) words.push(`-x -a ${quote(values)}`);
  else if (values === '@directories') words.push("-x -a '(__fish_complete_directories)'");
  else if (values !== undefined) words.push(values === '@files' ? '-r -F' : '-x');
  return [...words, `-d ${quote(option.description)}`].join(' ');
}

const SCRIPTS: Readonly<Record<Shell, (nodes: readonly Node[]) => string>> = { bash, zsh, fish };
