import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import { prng } from '../support/golden.ts';
import { deployment, type RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import { assertSame, FINAL_PHASE, locationIsAvailable } from './tools.ts';

/** Claims of an application. */
export const FILES = ['data', 'more'];
export const BLOCK = 'raw';
const BLOCK_BYTES = 8 << 20;

/**
 * Applications that are backed up, deleted and restored as a whole. `copies`: a directory for what
 * their volumes hold.
 */
export function wholeApplications(theNode: () => RealNode, copies: string) {
  /**
   * Runs an application with volumes of files and a block device, and keeps a copy of their data.
   */
  async function runApplication(namespace: string): Promise<void> {
    const node = theNode();
    const claims = [...FILES.map((name) => ({ name })), { name: BLOCK, block: true }];
    await node.applyPatiently(deployment(namespace, claims));
    await ready(namespace);
    for (const name of FILES) {
      const path = await node.volumePath(namespace, name);
      makeTree(join(path, 'tree'), `${namespace}-${name}`);
      execFileSync('cp', ['-a', path, join(copies, `${namespace}-${name}`)]);
    }
    const raw = await node.volumePath(namespace, BLOCK);
    const file = fs.openSync(raw, 'r+');
    fs.writeSync(file, prng(namespace, BLOCK_BYTES));
    fs.closeSync(file);
    fs.copyFileSync(raw, join(copies, `${namespace}-${BLOCK}`));
  }

  /**
   * Other bytes in each of its volumes, at both ends; they are what {@link assertBack} compares
   * with from now on.
   */
  async function work(namespace: string, what: string): Promise<void> {
    const node = theNode();
    for (const name of FILES) {
      const path = await node.volumePath(namespace, name);
      fs.writeFileSync(join(path, 'tree', 'worked'), what);
      fs.appendFileSync(join(path, 'tree/data/big'), what);
      const copy = join(copies, `${namespace}-${name}`);
      fs.rmSync(copy, { recursive: true, force: true });
      execFileSync('cp', ['-a', path, copy]);
    }
    const raw = await node.volumePath(namespace, BLOCK);
    const file = fs.openSync(raw, 'r+');
    fs.writeSync(file, prng(`${namespace} ${what}`, BLOCK_BYTES));
    fs.closeSync(file);
    fs.copyFileSync(raw, join(copies, `${namespace}-${BLOCK}`));
  }

  const ready = (namespace: string): Promise<string> =>
    theNode().kubectl('-n', namespace, 'rollout', 'status', 'deploy/app', '--timeout=90s');

  /**
   * Asserts that the restored data equals the copy, and that the rest of the application is back.
   */
  async function assertBack(namespace: string): Promise<void> {
    const node = theNode();
    await ready(namespace);
    for (const name of FILES) {
      assertSame(join(copies, `${namespace}-${name}`), await node.volumePath(namespace, name));
    }
    const raw = await node.volumePath(namespace, BLOCK);
    execFileSync('cmp', [join(copies, `${namespace}-${BLOCK}`), raw]);
    const settings = ['get', 'configmap', 'settings', '-o', 'jsonpath={.data.colour}'];
    expect(await node.kubectl('-n', namespace, ...settings)).toBe('blue');
  }

  const phaseOf = (kind: 'backup' | 'restore', name: string): Promise<string> => {
    const query = ['get', `${kind}.velero.io/${name}`, '-o', 'jsonpath={.status.phase}'];
    return theNode().kubectl('-n', 'velero', ...query);
  };

  async function untilPhase(
    kind: 'backup' | 'restore',
    name: string,
    phases = FINAL_PHASE,
  ): Promise<string> {
    for (;;) {
      const phase = await phaseOf(kind, name);
      if (phases.test(phase) || FINAL_PHASE.test(phase)) return phase;
      await sleep(200);
    }
  }

  const describedAs = (kind: 'backup' | 'restore', name: string): Promise<string> =>
    theNode().velero(kind, 'describe', name, '--details', '--colorized=false');

  /**
   * Retries if Velero refused the request before it began. Velero does so while it finds the
   * storage location unavailable.
   */
  async function create(
    kind: 'backup' | 'restore',
    name: string,
    ...flags: string[]
  ): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      await locationIsAvailable(theNode());
      await theNode().velero(kind, 'create', name, ...flags);
      const phase = await untilPhase(kind, name, /^(?!New$|ReadyToStart$|Queued$)./);
      if (phase !== 'FailedValidation' || attempt === 3) return;
      await theNode().kubectl('-n', 'velero', 'delete', `${kind}.velero.io/${name}`);
    }
  }

  /** Logs and details of a backup or restore that did not end well. */
  async function detailsOf(kind: 'backup' | 'restore', name: string): Promise<string> {
    const logs = (await theNode().velero(kind, 'logs', name).catch(String)).split('\n');
    const telling = logs.filter((line) => /level=(error|warning)/.test(line));
    return [await describedAs(kind, name), ...telling].join('\n');
  }

  return {
    runApplication,
    work,
    ready,
    assertBack,
    phaseOf,
    untilPhase,
    describedAs,
    create,
    detailsOf,
  };
}
