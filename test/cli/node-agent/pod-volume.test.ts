import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';

const BIN = new URL('../../../bin/longshore', import.meta.url).pathname;

function run(...parameters: string[]): { code: number | null; err: string; out: string } {
  const { status, stderr, stdout } = spawnSync(BIN, parameters, {
    // No cluster: the command reports bad parameters before it looks for a cluster.
    env: { ...process.env, NO_COLOR: '1', KUBECONFIG: '/nowhere' },
    encoding: 'utf8',
  });
  return { code: status, err: stderr, out: stdout };
}

const TIMEOUT = ['--resource-timeout', '10m0s'];
const PATH = ['--volume-path', '/u-1'];

it.each<[string, string[], RegExp]>([
  ['backup', [...TIMEOUT, '--pod-volume-backup', 'b'], /'--volume-path <path>' not specified/],
  ['backup', [...TIMEOUT, ...PATH], /'--pod-volume-backup <name>' not specified/],
  [
    'backup',
    [...PATH, '--pod-volume-backup', 'b'],
    /'--resource-timeout <duration>' not specified/,
  ],
  [
    'backup',
    [...TIMEOUT, ...PATH, '--pod-volume-backup='],
    /the name of the PodVolumeBackup is empty/,
  ],
  ['backup', [...TIMEOUT, '--volume-path=', '--pod-volume-backup', 'b'], /--volume-path is empty/],
  ['restore', [...TIMEOUT, ...PATH], /'--pod-volume-restore <name>' not specified/],
  ['restore', [...TIMEOUT, '--pod-volume-restore', 'r'], /'--volume-path <path>' not specified/],
  [
    'restore',
    ['--resource-timeout', '0s', ...PATH, '--pod-volume-restore', 'r'],
    /--resource-timeout "0s" is not a duration such as 10m0s/,
  ],
  [
    'restore',
    ['--resource-timeout=-1s', ...PATH, '--pod-volume-restore', 'r'],
    /--resource-timeout "-1s" is not a duration/,
  ],
  [
    'restore',
    [...TIMEOUT, ...PATH, '--pod-volume-restore', 'r', '--log-format', 'xml'],
    /--log-format/,
  ],
])('pod-volume %s %j is wrong usage', (direction, flags, words) => {
  const { code, err } = run('pod-volume', direction, ...flags);
  expect(err).toMatch(words);
  expect(code).toBe(2);
});

it('is not shown to users, and says what it takes to those who know it', () => {
  expect(run('--help').out).not.toContain('pod-volume');
  const { out } = run('pod-volume', 'restore', '--help');
  for (const flag of [
    '--volume-path',
    '--pod-volume-restore',
    '--resource-timeout',
    '--cache-volume-path',
    '--log-level',
    '--log-format',
  ]) {
    expect(out).toContain(flag);
  }
  expect(run('pod-volume', 'backup', '--help').out).not.toContain('--cache-volume-path');
});
