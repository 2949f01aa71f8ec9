import type { Command } from 'commander';
import { UsageError } from '../usage-error.ts';

/** `help`, `help VERB` and `help VERB VERB`: the same as `--help`. */
export function addHelpVerb(program: Command): void {
  program.helpCommand(false);
  program
    .command('help [verb...]')
    .description(
      'show what a verb does and which options it takes, for example help snapshot create',
    )
    .action((words: string[]) => {
      const shown: string[] = [];
      let command = program;
      for (const word of words) {
        const next = command.commands.find(
          (each) => each.name() === word || each.aliases().includes(word),
        );
        if (!next) throw new UsageError(noSuchVerb(command, [...shown, word]));
        command = next;
        shown.push(word);
      }
      command.outputHelp();
    });
}

function noSuchVerb(command: Command, words: readonly string[]): string {
  const names = command.createHelp().visibleCommands(command);
  const known = names.map((each) => each.name()).filter((name) => name !== 'help');
  const there = known.length > 0 ? `; the verbs are ${known.join(', ')}` : '';
  return `there is no verb "${words.join(' ')}"${there}`;
}
