import { afterAll, beforeAll, expect, it } from 'vitest';
import { BACKUPS, SCHEDULES } from '../../src/kube/index.ts';
import { runHere } from '../support/command-line.ts';
import { Api } from './backups/support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('noun-first');
  await api.add(BACKUPS, 'web', { status: { phase: 'Completed' } });
  await api.add(SCHEDULES, 'nightly', { spec: { schedule: '0 2 * * *' } });
});
afterAll(() => api[Symbol.asyncDispose]());

it.each([
  [
    ['get', 'backups'],
    ['backup', 'get'],
  ],
  [
    ['get', 'backup', 'web', '-o', 'name'],
    ['backup', 'get', 'web', '-o', 'name'],
  ],
  [
    ['describe', 'schedule', 'nightly'],
    ['schedule', 'describe', 'nightly'],
  ],
  [
    ['delete', 'restores', 'x', '--confirm'],
    ['restore', 'delete', 'x', '--confirm'],
  ],
])('the verb may come first, as with Velero: %s', async (velero, ours) => {
  const first = await api.longshore(...velero);
  expect(first).toEqual(await api.longshore(...ours));
  expect(first.out + first.err).toMatch(/web|nightly|there is no Restore/);
});

it('no other word is moved', async () => {
  const wrong = await runHere('get', 'pods');
  expect(wrong.code).toBe(2);
  expect(wrong.err).toContain("unknown command 'get'");
  expect((await runHere('version')).out).toMatch(/^\d+\.\d+\.\d+\n$/);
});

it('help names what most people look for first', async () => {
  const { out } = await runHere('--help');
  const headings = [...out.matchAll(/^(\S.*):$/gm)].map(([, heading]) => heading);
  expect(headings).toEqual([
    'Options',
    'A cluster and its backups',
    'Directories, devices and repositories, without a cluster',
    'What pods run',
    'Besides',
  ]);
  expect(out.indexOf(' backup ')).toBeLessThan(out.indexOf(' repository '));
});
