import * as fs from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, normalize } from 'node:path';
import type { Command, Option } from 'commander';
import { parse } from 'yaml';
import { describe, expect, it } from 'vitest';
import { createProgram } from '../../src/cli/run.ts';
import { allCodes, codesOf, OTHER_WORDS } from '../support/error-codes.ts';
import { type ShellCommand, shellCommands } from '../support/shell-commands.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const read = (path: string): string => fs.readFileSync(join(ROOT, path), 'utf8');
const PAGES = ['README.md', ...fs.globSync('docs/**/*.md', { cwd: ROOT }).sort()];

/** Verbs of Velero's command line (v1.18.3) that docs may name, with those below them. */
const VELERO: Readonly<Record<string, readonly string[]>> = {
  backup: ['create', 'get', 'describe', 'delete', 'logs', 'download'],
  restore: ['create', 'get', 'describe', 'delete', 'logs'],
  schedule: ['create', 'get', 'describe', 'delete', 'pause', 'unpause'],
  'backup-location': ['create', 'get', 'delete', 'set'],
  'snapshot-location': ['create', 'get', 'set'],
  plugin: ['add', 'get', 'remove'],
  repo: ['get'],
  client: ['config'],
  install: [],
  uninstall: [],
  version: [],
  debug: [],
  server: [],
  'node-agent': [],
  'repo-maintenance': [],
  'data-mover': [],
  restores: [],
  backups: [],
};
const KUBECTL = [
  ...['apply', 'create', 'delete', 'get', 'describe', 'edit', 'patch', 'annotate', 'label'],
  ...['exec', 'logs', 'port-forward', 'rollout', 'scale', 'wait', 'diff', 'cp', 'run', 'set'],
  ...[
    'config',
    'debug',
    'taint',
    'drain',
    'cluster-info',
    'top',
    'api-resources',
    'version',
    'auth',
    'explain',
  ],
];
/** Options of kubectl with a value as a separate word. */
const KUBECTL_VALUES = ['-n', '--namespace', '--context', '--kubeconfig', '-s', '--server'];
const PROGRAM = createProgram();

/** The problem of a command, in the words of its own program. */
function problemOf([name = '', ...words]: ShellCommand, isWhole: boolean): string | undefined {
  switch (name.replace(/^.*\//, '')) {
    case 'longshore':
      return problemOfOurs(PROGRAM, words, isWhole);
    case 'velero':
      return problemOfVelero(words.filter((word) => !word.startsWith('-')));
    case 'kubectl': {
      let at = 0;
      while (words[at]?.startsWith('-') === true) {
        at += KUBECTL_VALUES.includes(words[at] ?? '') ? 2 : 1;
      }
      const verb = words[at];
      return verb !== undefined && KUBECTL.includes(verb)
        ? undefined
        : `kubectl has no verb ${verb}`;
    }
    default:
      return undefined;
  }
}

function problemOfVelero([verb = '', below]: readonly string[]): string | undefined {
  const verbs = VELERO[verb];
  if (!verbs) return `velero has no verb ${verb}`;
  const isKnown = verbs.length === 0 || below === undefined || verbs.includes(below);
  return isKnown ? undefined : `velero ${verb} has no verb ${below}`;
}

function problemOfOurs(
  command: Command,
  words: readonly string[],
  isWhole: boolean,
): string | undefined {
  const named = (name: string | undefined): Command | undefined =>
    command.commands.find((each) => each.name() === name || each.aliases().includes(name ?? ''));
  const [first, ...others] = words;
  const child = named(first);
  if (child) return problemOfOurs(child, others, isWhole);
  const path = pathOf(command);
  if (first !== undefined && command.commands.length > 0 && !first.startsWith('-')) {
    return `${path} has no verb ${first}`;
  }
  const given: string[] = [];
  for (let at = 0; at < words.length; at++) {
    const word = words[at] ?? '';
    if (word === '--') break;
    if (!/^-[^\d]/.test(word)) {
      given.push(word);
      continue;
    }
    const [flag = '', value] = word.split(/=(.*)/s);
    if (['-h', '--help'].includes(flag)) return undefined;
    const option = optionOf(command, flag);
    if (!option) return `${path} has no flag ${flag}`;
    if (option.isBoolean() && value !== undefined) return `${path} ${flag} takes no value`;
    if (option.required && value === undefined && isWhole && ++at >= words.length) {
      return `${path} ${flag} needs a value`;
    }
  }
  const parameters = command.registeredArguments;
  const least = parameters.filter(({ required }) => required).length;
  if (!parameters.some(({ variadic }) => variadic) && given.length > parameters.length) {
    return isWhole ? `${path} does not take "${given.at(-1)}"` : undefined;
  }
  if (isWhole && given.length < least) return `${path} needs more than "${given.join(' ')}"`;
  return isWhole && command.commands.length > 0 ? `${path} needs a verb` : undefined;
}

function optionOf(command: Command, flag: string): Option | undefined {
  const own = command.options.find(({ short, long }) => [short, long].includes(flag));
  return own ?? (command.parent ? optionOf(command.parent, flag) : undefined);
}

const pathOf = (command: Command): string =>
  command.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name();

/** Pieces of shell in a page, and commands within its sentences, which need not be whole. */
function piecesOf(page: string): { readonly text: string; readonly isWhole: boolean }[] {
  const fences = [...page.matchAll(/^( *)```(\w*)\n(.*?)^ *```$/gms)].flatMap(
    ([, indent = '', kind, text = '']) => {
      if (kind === 'sh') return [text.replaceAll(new RegExp(`^${indent}`, 'gm'), '')];
      // Other fences hold output, or commands only.
      const isCommands = kind === '' && /^(?:longshore|velero|kubectl|bin\/longshore) /.test(text);
      return isCommands ? [text] : [];
    },
  );
  const prose = page.replaceAll(/^ *```.*?^ *```$/gms, '');
  const spans = [...prose.matchAll(/`((?:longshore|velero|kubectl) [^`]*)`/g)].map(
    ([, text = '']) => text.replaceAll(/\s*(?:\.\.\.|…)$/g, '').replaceAll('\n', ' '),
  );
  return [
    ...fences.map((text) => ({ text, isWhole: true })),
    ...spans.map((text) => ({ text, isWhole: false })),
  ];
}

describe('commands in docs', () => {
  it.each(PAGES)('%s names only commands that there are', (page) => {
    const wrong: string[] = [];
    for (const { text, isWhole } of piecesOf(read(page))) {
      // A name in angle brackets stands for the reader's value.
      for (const command of shellCommands(text.replaceAll(/<[a-z][a-z0-9 -]*>/g, 'FILL-IN'))) {
        const problem = problemOf(command, isWhole);
        if (problem !== undefined) wrong.push(`${problem}: ${command.join(' ')}`);
      }
    }
    expect(wrong).toEqual([]);
  });

  it('there are many, and those of each program are looked at', () => {
    const all = PAGES.flatMap((page) =>
      piecesOf(read(page)).flatMap(({ text }) =>
        shellCommands(text.replaceAll(/<[a-z][a-z0-9 -]*>/g, 'X')),
      ),
    );
    for (const [program, least] of Object.entries({ longshore: 200, velero: 30, kubectl: 100 })) {
      expect(all.filter(([name]) => name === program).length, program).toBeGreaterThan(least);
    }
  });

  it('alerts name only commands that there are', () => {
    for (const file of fs.globSync('manifests/monitoring/*.yaml', { cwd: ROOT })) {
      const rules = parse(read(file)) as {
        spec: { groups: { rules: { annotations: Record<string, string> }[] }[] };
      };
      for (const { annotations } of rules.spec.groups.flatMap((group) => group.rules)) {
        const text = annotations.description ?? '';
        for (const [command] of text.matchAll(
          /\blongshore (?:[a-z-]+ )+(?=[A-Z{]|says|shows|names)/g,
        )) {
          const words = command.trim().split(' ').slice(1);
          expect(problemOfOurs(PROGRAM, words, false), command).toBeUndefined();
        }
      }
    }
  });

  it.each([
    ['longshore backup make x', 'longshore backup has no verb make'],
    ['longshore backup create x --snapshot-volume', 'longshore backup create has no flag'],
    ['longshore browse', 'longshore browse needs more'],
    ['longshore backup logs a b', 'does not take "b"'],
    ['longshore backup', 'longshore backup needs a verb'],
    ['longshore restore create --from-backup', 'needs a value'],
    ['A=b longshore nope | cat', 'longshore has no verb nope'],
    ['echo "$(longshore nope)"', 'longshore has no verb nope'],
    ['velero backups create', undefined],
    ['velero backup make', 'velero backup has no verb make'],
    ['kubectl -n velero --context c obtain pods', 'kubectl has no verb obtain'],
    ['kubectl -n velero get pods && kubectl fetch', 'kubectl has no verb fetch'],
    ['cat <<END\nlongshore nope\nEND\nlongshore help', undefined],
    ['longshore backup get \\\n  -o json > "a b" # longshore nope', undefined],
  ])('%j', (text, problem) => {
    const problems = shellCommands(text).flatMap((command) => problemOf(command, true) ?? []);
    if (problem === undefined) expect(problems).toEqual([]);
    else expect(problems.join()).toContain(problem);
  });

  it('a quote without end is noticed', () => {
    for (const text of ["echo 'a", 'echo "a', 'echo $(a'])
      expect(() => shellCommands(text)).toThrow();
  });
});

describe('links in docs', () => {
  const anchorsOf = (page: string): string[] =>
    [...page.replaceAll(/^ *```.*?^ *```$/gms, '').matchAll(/^#+ (.*)$/gm)].map(([, title = '']) =>
      title
        .toLowerCase()
        .replaceAll(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    );

  it.each(PAGES)('%s leads only to what is there', (page) => {
    const text = read(page).replaceAll(/^ *```.*?^ *```$/gms, '');
    const wrong: string[] = [];
    for (const [, target = ''] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [file = '', anchor] = target.split('#');
      const path = file === '' ? page : normalize(join(dirname(page), file));
      if (!fs.existsSync(join(ROOT, path))) wrong.push(target);
      else if (anchor !== undefined && !anchorsOf(read(path)).includes(anchor)) wrong.push(target);
    }
    expect(wrong).toEqual([]);
  });

  it('the drawing of two lives names files that are there', () => {
    const [, drawing = ''] = /^```text\n(.*?)^```$/ms.exec(read('ARCHITECTURE.md')) ?? [];
    const files = drawing.match(/(?<= )[a-z][a-z-]*\/[a-z/-]*(?:\.ts)?/g) ?? [];
    expect(files.length).toBeGreaterThan(30);
    expect(files.filter((file) => !fs.existsSync(join(ROOT, 'src', file)))).toEqual([]);
  });

  it('the pages about the code name files and folders that are there', () => {
    const pages = ['ARCHITECTURE.md', ...PAGES.filter((page) => page.startsWith('docs/dev/'))];
    const tops = fs.readdirSync(join(ROOT, 'src'));
    const wrong: string[] = [];
    let count = 0;
    for (const page of pages) {
      for (const [, name = ''] of read(page).matchAll(/`((?:[\w.*-]+\/)+[\w.*-]*)`/g)) {
        const [top = ''] = name.split('/');
        const path = tops.includes(top) ? `src/${name}` : name;
        const isThere =
          fs.globSync(path.replace(/\/$/, ''), { cwd: ROOT }).length > 0 ||
          fs.globSync(`${path}.test.ts`, { cwd: ROOT }).length > 0;
        if (['src', 'test', 'docs', 'manifests', 'bench', 'image', ...tops].includes(top)) {
          count++;
          if (!isThere) wrong.push(`${page}: ${name}`);
        }
      }
    }
    expect(wrong).toEqual([]);
    expect(count).toBeGreaterThan(40);
  });

  it('the table of imports is the one that lint checks', () => {
    const { forbidden } = createRequire(import.meta.url)('../../.dependency-cruiser.cjs') as {
      forbidden: { name: string; to: { pathNot?: string | string[] } }[];
    };
    const checked = forbidden.flatMap(({ name, to: { pathNot } }): [string, string[]][] => {
      const [, folder] = /^imports-of-(.*)$/.exec(name) ?? [];
      if (folder === undefined) return [];
      const [, all = ''] = /\((.*?)\)/.exec([pathNot].flat()[0] ?? '') ?? [];
      const below = all.split('|').filter((each) => each !== folder && each !== 'base');
      return [[folder, below.sort()]];
    });
    const rows = [...read('ARCHITECTURE.md').matchAll(/^\| `([a-z-]+)` +\|[^|]*\|([^|]*)\|$/gm)];
    const told = rows.map(([, folder = '', list = '']): [string, string[]] => [
      folder,
      list.trim() === '' ? [] : list.trim().split(', ').sort(),
    ]);
    expect(Object.fromEntries(told)).toEqual({
      ...Object.fromEntries(checked),
      cli: ['everything'],
    });
  });

  it('no folder of src has more than 25 files side by side, and one file is called run.ts', () => {
    const sources = fs.globSync('src/**/*.ts', { cwd: ROOT });
    const counts = Map.groupBy(sources, (path) => path.slice(0, path.lastIndexOf('/')));
    const large = [...counts].filter(([, files]) => files.length > 25).map(([folder]) => folder);
    expect(large).toEqual([]);
    expect(sources.filter((path) => path.endsWith('/run.ts'))).toEqual(['src/cli/run.ts']);
  });

  it('docs/README.md leads to each page', () => {
    const index = read('docs/README.md');
    const own = PAGES.filter((page) => /^docs\/[^/]+\.md$/.test(page) && page !== 'docs/README.md');
    for (const page of own) expect(index).toContain(`(${page.slice('docs/'.length)})`);
  });
});

describe('docs/errors.md', () => {
  const rows = [
    ...read('docs/errors.md').matchAll(/^\| `([A-Z0-9_]+)` +\| (.*?) +\| (.*?) +\|$/gm),
  ].map(([, code = '', meaning = '', remedy = '']) => ({ code, meaning, remedy }));
  const codes = allCodes(join(ROOT, 'src'));

  it('has each code of the program once, in order, and none that is gone', () => {
    const listed = rows.map(({ code }) => code);
    const made = [...codes.keys()].sort();
    expect(
      made.filter((code) => !listed.includes(code)).map((code) => [code, codes.get(code)]),
    ).toEqual([]);
    expect(listed).toEqual(made);
    expect(made.length).toBeGreaterThan(250);
  });

  it('says of each what it means and what to do', () => {
    for (const { code, meaning, remedy } of rows) {
      expect(meaning.length, code).toBeGreaterThan(15);
      expect(remedy.length, code).toBeGreaterThan(5);
    }
  });

  it('codes are found wherever they are made', () => {
    const source = `
      throw new CodedError('STALLED', 'x');
      class A extends CodedError { constructor() { super('USAGE', 'x'); } }
      const code = isGone ? 'POD_GONE' : 'POD_HERE';
      const header = 'GET'; make('TLS', 'x'); env('LONGSHORE_X');
    `;
    expect(codesOf(source)).toEqual(['STALLED', 'USAGE', 'POD_GONE', 'POD_HERE']);
  });

  it('no word is left out that is not there any more', () => {
    const sources = fs.globSync('src/**/*.ts', { cwd: ROOT }).map(read);
    const words = new Set(
      sources.flatMap((text) =>
        [...text.matchAll(/'([A-Z][A-Z0-9_]+)'/g)].map(([, word = '']) => word),
      ),
    );
    for (const other of OTHER_WORDS) {
      expect(
        [...words].some((word) => other.test(word)),
        String(other),
      ).toBe(true);
    }
  });
});
