import { execFileSync } from 'node:child_process';
import { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { addServerVerb } from '../../../src/cli/server/verb.ts';
import { chosenControllers } from '../../../src/cli/server/controllers.ts';
import { CONTROLLERS, RESTORE_CONTROLLERS } from '../../../src/server/compose/controller-names.ts';
import { addVeleroServerFlags, flagsWithoutEffect } from '../../../src/cli/server/velero-flags.ts';
import { hasPeers, peer } from '../../support/real-api.ts';

describe('which controllers run', () => {
  it.each([
    [undefined, undefined, [...CONTROLLERS]],
    ['repository', undefined, ['backup-repo']],
    [' download-request, backup-repo,', undefined, ['backup-repo', 'download-request']],
    [
      undefined,
      'backup-repo,gc,schedule',
      CONTROLLERS.filter((name) => !['backup-repo', 'gc', 'schedule'].includes(name)),
    ],
    ['backup-queue,backup-finalizer', undefined, ['backup', 'backup-finalizer']],
    ['backup-repo,download-request', 'backup-repo', ['download-request']],
    [`gc,${RESTORE_CONTROLLERS.join(',')}`, undefined, ['gc', ...RESTORE_CONTROLLERS]],
    ['gc', 'restore,restore-operations', ['gc']],
    // Where a Velero server makes restores.
    [
      undefined,
      RESTORE_CONTROLLERS.join(','),
      CONTROLLERS.filter((name) => !name.startsWith('restore')),
    ],
  ])('--controllers %s --disable-controllers %s', (named, disabled, expected) => {
    expect(chosenControllers(named, disabled)).toEqual(expected);
  });
  it.each([
    [
      'gc,restore,restore-finalizer',
      undefined,
      'restores need all of restore, restore-operations, restore-finalizer, and restore-operations would not run',
    ],
    [RESTORE_CONTROLLERS.join(','), 'restore', 'restore would not run: name all of them, or none'],
    ['nope', undefined, '--controllers: there is no controller "nope"'],
    [undefined, 'nope', '--disable-controllers: there is no controller "nope"'],
    ['backup-repo', 'repository', 'no controller is left to run'],
    ['', undefined, 'no controller is left to run'],
  ])('refuses --controllers %s --disable-controllers %s', (named, disabled, text) => {
    expect(() => chosenControllers(named, disabled)).toThrow(text);
  });
});

it('names the flags that have no effect, and no others', () => {
  const command = new Command();
  addVeleroServerFlags(command);
  command.parse(
    ['--restore-only', '--client-qps=10', '--colorized=false', '-v', '4', '--log_dir', '/tmp'],
    { from: 'user' },
  );
  expect(flagsWithoutEffect(command)).toEqual(['--restore-only', '--client-qps']);
});

it.skipIf(!hasPeers('velero'))("knows every flag of Velero's server", () => {
  const text = execFileSync(peer('velero'), ['server', '--help'], { encoding: 'utf8' });
  const theirs = [...text.matchAll(/^ +(?:-\w, )?(--[\w-]+)/gm)].map(([, flag]) => flag);
  expect(theirs.length).toBeGreaterThan(40);
  const program = new Command();
  addServerVerb(program);
  const [server] = program.commands;
  const ours = server?.options.map(({ long }) => long) ?? [];
  expect(theirs.filter((flag) => flag !== '--help' && !ours.includes(flag))).toEqual([]);
});
