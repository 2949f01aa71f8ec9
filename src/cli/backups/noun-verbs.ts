import { type Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { CancelFlags } from './cancel.ts';
import type { DeleteFlags } from './delete.ts';
import type { DescribeFlags } from './describe/describe.ts';
import type { GetFlags } from './get.ts';

/** Common verbs of backups, restores and schedules. Their code is loaded when one of them runs. */

type Word = 'backup' | 'restore' | 'schedule';

const nounOf = async (word: Word): Promise<import('./noun.ts').Noun> => {
  const { BACKUP, RESTORE, SCHEDULE } = await import('./noun.ts');
  return { backup: BACKUP, restore: RESTORE, schedule: SCHEDULE }[word];
};

const SELECTOR: [string, string] = [
  '-l, --selector <selector>',
  'only those with these labels, as "app=web,tier in (a,b)"',
];

export function addGetVerb(group: Command, word: Word): void {
  const moved =
    word === 'schedule' ? '' : ', or wide for more columns, volumes and bytes among them';
  withClusterOptions(group.command('get'))
    .description(`list ${word}s, or those that are named`)
    .argument('[names...]', `of ${word}s`)
    .option(...SELECTOR)
    .addOption(
      new Option('-o, --output <form>', `a document, names${moved}`).choices([
        ...['json', 'yaml', 'wide', 'name', 'table'],
      ]),
    )
    .addHelpText(
      'after',
      `
The exit code is 1 where one that is named is not there.

Examples:
  $ longshore ${word} get
  $ longshore ${word} get nightly -o yaml
  $ longshore ${word} get -l env=prod -o name`,
    )
    .action(async (names: string[], flags: GetFlags) => {
      const { getObjects } = await import('./get.ts');
      await getObjects(await nounOf(word), names, flags);
    });
}

const CANCELED: Record<'backup' | 'restore', string> = {
  backup: 'what it has begun is told to stop, and it ends as Failed or PartiallyFailed',
  restore:
    'what it has begun is told to stop, and it ends as Failed or PartiallyFailed; objects that it has made stay',
};

const IN_PLACE_CANCELED: Record<'backup' | 'restore', string> = {
  backup: '',
  restore: `
A restore in place ("longshore restore in-place") is named by its PVC, or by its DataDownload. What it has written stays, so that the volume may hold
files or blocks of before and of the backup: restore it again before something uses it. With --wait the command tells whether anything was written.
`,
};

export function addCancelVerb(group: Command, word: 'backup' | 'restore'): void {
  const kind = word === 'backup' ? 'Backup' : 'Restore';
  withClusterOptions(group.command('cancel'))
    .description(`end a ${word} that waits or runs: ${CANCELED[word]}`)
    .argument(
      '<name>',
      `of the ${kind}${word === 'restore' ? '; NAMESPACE/PVC for a restore in place' : ''}`,
    )
    .option('--wait', 'return when it has ended')
    .addHelpText(
      'after',
      `
Velero's CLI has no such command; "velero ${word} delete" of a ${word} that runs ends it as well, and removes it.
${IN_PLACE_CANCELED[word]}
Examples:
  $ longshore ${word} cancel nightly-20261125 --wait${word === 'restore' ? '\n  $ longshore restore cancel shop/data --wait' : ''}`,
    )
    .action(async (name: string, flags: CancelFlags) => {
      const { cancelNamed } = await import('./cancel.ts');
      await cancelNamed(await nounOf(word), name, flags);
    });
}

export function addDescribeVerb(group: Command, word: Word): void {
  const command = withClusterOptions(group.command('describe'))
    .description(DESCRIPTIONS[word])
    .argument('[names...]', `of ${word}s; without names and labels, all of them`)
    .option(...SELECTOR);
  if (word !== 'schedule') {
    command.option('--details', 'all that is known: each volume, each warning and error');
  }
  command
    .addOption(new Option('-o, --output <form>', 'a document').choices(['json', 'yaml']))
    .addHelpText(
      'after',
      `
${word === 'schedule' ? '' : `Warnings and errors are read from the bucket, as "longshore ${word} logs" does; where that is not possible the rest is shown, and why.\n\n`}Examples:
  $ longshore ${word} describe nightly${word === 'schedule' ? '' : ' --details'}
  $ longshore ${word} describe nightly -o json`,
    )
    .action(async (names: string[], flags: DescribeFlags) => {
      const { describeObjects } = await import('./describe/describe.ts');
      await describeObjects(await nounOf(word), names, flags);
    });
}

const DESCRIPTIONS: Readonly<Record<Word, string>> = {
  backup:
    'say how a backup went or how far it is, volume by volume, what it waits for, and what to do when it failed',
  restore:
    'say how a restore went or how far it is, volume by volume, what it waits for, and what to do when it failed',
  schedule: 'say when backups of a schedule are made, of what, and how the last ones went',
};

export function addDeleteVerb(group: Command, word: Word): void {
  const command = withClusterOptions(group.command('delete'))
    .description(DELETIONS[word])
    .argument('[names...]', `of ${word}s`)
    .option(...SELECTOR)
    .option('--all', `all ${word}s of the namespace`)
    .option('--confirm', 'do not ask; needed where nobody can be asked');
  if (word === 'backup') command.option('--wait', 'return when they are gone');
  command
    .addHelpText(
      'after',
      `
Examples:
  $ longshore ${word} delete nightly
  $ longshore ${word} delete -l env=test --confirm${word === 'backup' ? ' --wait' : ''}`,
    )
    .action(async (names: string[], flags: DeleteFlags) => {
      const { deleteObjects } = await import('./delete.ts');
      await deleteObjects(await nounOf(word), names, flags);
    });
}

const DELETIONS: Readonly<Record<Word, string>> = {
  backup: 'delete backups with all that is stored of them, and the restores made from them',
  restore: 'delete restores and what is stored about them; what they restored stays',
  schedule: 'delete schedules; the backups that they made stay',
};
