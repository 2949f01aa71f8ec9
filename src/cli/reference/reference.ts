import { EventEmitter } from 'node:events';
import type { Command, Option } from 'commander';
import { withCommonOptions } from '../program.ts';

const EXAMPLE = /^\n?Examples?:\n/;

/**
 * The `--help` texts of all verbs as one Markdown page, one section each. Options of all verbs on a
 * repository appear once. Hidden verbs and options are left out.
 */
export function commandReference(program: Command): string {
  const common = new Set(withCommonOptions(program.createCommand('any')).options.map(flagsOf));
  const parts = [
    '# Command line',
    'Generated from the `--help` texts by `npm run build:docs`.',
    '## Options of all verbs on a repository',
    'Verbs whose usage shows `--repo` below take these too.',
    optionTable(withCommonOptions(program.createCommand('any')).options),
  ];
  for (const { words, command } of verbsOf(program)) {
    const isOnRepository = command.options.some(({ long }) => long === '--repo');
    const own = command.options.filter((option) => !isOnRepository || !common.has(flagsOf(option)));
    const call = [...words, isOnRepository ? '[--repo <location>]' : '', command.usage()];
    parts.push(
      `## ${words.slice(1).join(' ')}`,
      sentence(command.description()),
      '```text\n' + call.filter((word) => word !== '').join(' ') + '\n```',
    );
    if (own.some((option) => !option.hidden)) parts.push(optionTable(own));
    const after = helpAfter(command);
    if (after !== '') parts.push(after);
  }
  return `${parts.join('\n\n')}\n`;
}

const flagsOf = ({ flags }: Option): string => flags;
const sentence = (text: string): string =>
  `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`;

function verbsOf(
  command: Command,
  words: readonly string[] = [command.name()],
): { words: readonly string[]; command: Command }[] {
  if (command.commands.length === 0) return [{ words, command }];
  const shown = command.createHelp().visibleCommands(command);
  return shown
    .filter((child) => child.name() !== 'help')
    .flatMap((child) => verbsOf(child, [...words, child.name()]));
}

const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('<', '&lt;');

function optionTable(options: readonly Option[]): string {
  const rows = options
    .filter(({ hidden }) => !hidden)
    .map(({ flags, description, argChoices, defaultValue }) => {
      const choices = argChoices ? ` (${argChoices.join(', ')})` : '';
      const isTold = defaultValue === undefined || typeof defaultValue === 'object';
      const otherwise = isTold ? '' : `; default: ${JSON.stringify(defaultValue)}`;
      return `| \`${flags.replaceAll('|', '\\|')}\` | ${cell(description + choices + otherwise)} |`;
    });
  return ['| option | meaning |', '| --- | --- |', ...rows].join('\n');
}

/** Examples, and other text that a verb adds after its help. */
function helpAfter(command: Command): string {
  let text = '';
  const write = (part: string): void => void (text += part);
  // commander collects its help text through this event, which its types do not declare.
  if (command instanceof EventEmitter) command.emit('afterHelp', { error: false, command, write });
  return text
    .trim()
    .split(/\n\n+|\n(?=Examples?:\n)/)
    .map((part) => part.trim())
    .map((part) => {
      if (!EXAMPLE.test(part)) return part.replace(/<\w+>/g, '`$&`');
      return ['```sh', part.replace(EXAMPLE, '').replace(/^ *\$ /gm, ''), '```'].join('\n');
    })
    .join('\n\n');
}
