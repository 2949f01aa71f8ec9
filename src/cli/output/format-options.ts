import { type Command, Option } from 'commander';
import { type DocumentFormat, setDocumentFormat, setQuiet } from './terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface OutputFlags {
  json?: boolean;
  output?: DocumentFormat | 'wide';
  quiet?: boolean;
}

/** Whether a table shows all columns in full. */
export const isWide = ({ output }: OutputFlags): boolean => output === 'wide';

/** Adds `-o` to a verb that prints a document with `--json`. */
export function withOutputForm(command: Command, { isTable = false } = {}): Command {
  const [text, choices] = isTable
    ? ['one JSON or YAML document, or the table with all columns in full', ['json', 'yaml', 'wide']]
    : ['print one document in this form on stdout', ['json', 'yaml']];
  return command
    .addOption(new Option('-o, --output <form>', text).choices(choices))
    .hook('preAction', async (_, action) => {
      const { json, output } = action.opts<OutputFlags>();
      if (json === true && output !== undefined && output !== 'json') {
        throw new UsageError(`--json and -o ${output} contradict each other`);
      }
      if (output === 'json' || output === 'yaml') action.setOptionValue('json', true);
      await setDocumentFormat(output === 'yaml' ? 'yaml' : 'json');
    });
}

/** Adds `-o` to all verbs below that lack it, and handles `--quiet`. */
export function withOutputForms(command: Command): void {
  const has = (flag: string): boolean => command.options.some(({ long }) => long === flag);
  if (has('--json') && !has('--output')) withOutputForm(command);
  if (has('--quiet')) {
    command.hook('preAction', (_, action) => {
      const isQuiet = action.opts<OutputFlags>().quiet === true;
      setQuiet(isQuiet);
      if (isQuiet && has('--progress')) action.setOptionValue('progress', 'none');
    });
  }
  for (const child of command.commands) withOutputForms(child);
}
