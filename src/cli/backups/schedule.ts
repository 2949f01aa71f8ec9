import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { addDeleteVerb, addDescribeVerb, addGetVerb } from './noun-verbs.ts';
import type { PauseFlags } from './pause.ts';
import { addBackupSpecFlags, bareBoolean } from './create/spec-flags.ts';

export function addScheduleVerb(program: Command): void {
  const schedule = program.command('schedule').description('have backups made again and again');
  const create = withClusterOptions(schedule.command('create'))
    .description(
      "make backups at the times of a cron expression, in the server's time zone, which is UTC by default, or in that of a CRON_TZ=ZONE before it",
    )
    .argument('<name>', 'of the Schedule; backups are called NAME-YYYYMMDDhhmmss')
    .option(
      '--schedule <cron>',
      'minute, hour, day of the month, month, day of the week; or @daily and its like, or "@every 6h"',
    );
  bareBoolean(create, '--paused', 'make no backups until "longshore schedule unpause"');
  addSkipFlag(create);
  bareBoolean(
    create,
    '--use-owner-references-in-backup',
    'backups go with the Schedule when it is deleted',
  );
  addBackupSpecFlags(create);
  create
    .addHelpText(
      'after',
      `
All flags of "longshore backup create" say what a backup takes. Annotations are those of the Schedule, and of each backup.

Examples:
  $ longshore schedule create nightly --schedule "0 2 * * *" --snapshot-move-data --ttl 720h
  $ longshore schedule create shop --schedule "@every 6h" --include-namespaces shop
  $ longshore schedule create later --schedule "@daily" -o yaml`,
    )
    .action(async (name: string, flags: object) => {
      const { createSchedule } = await import('./create/create.ts');
      await createSchedule(name, flags);
    });
  addGetVerb(schedule, 'schedule');
  addDescribeVerb(schedule, 'schedule');
  addDeleteVerb(schedule, 'schedule');
  addPauseVerb(schedule, true);
  addPauseVerb(schedule, false);
}

function addPauseVerb(schedule: Command, isPaused: boolean): void {
  const verb = isPaused ? 'pause' : 'unpause';
  const command = withClusterOptions(schedule.command(verb))
    .description(isPaused ? 'make no more backups for now' : 'make backups again')
    .argument('[names...]', 'of schedules')
    .option('-l, --selector <selector>', 'those with these labels')
    .option('--all', 'all schedules of the namespace');
  addSkipFlag(command);
  command
    .addHelpText('after', `\nExample:\n  $ longshore schedule ${verb} nightly`)
    .action(async (names: string[], flags: PauseFlags) => {
      const { setPaused } = await import('./pause.ts');
      await setPaused(isPaused, names, flags);
    });
}

function addSkipFlag(command: Command): void {
  command.option(
    '--skip-immediately <boolean>',
    'true: do not make up for the backup whose time has passed (default: as the server is told)',
  );
}
