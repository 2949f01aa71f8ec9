import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { endLeftProcesses, noteProcess, processNote } from '../../src/dev/leftover-processes.ts';
import { tempDirectory } from '../support/kopia.ts';
import { recordingLogger } from '../support/repositories.ts';

const work = tempDirectory('left-processes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

it('what a killed cluster left running is ended, and no other process of its number', async () => {
  const children = [0, 1].map(() => spawn('sleep', ['300'], { stdio: 'ignore' }));
  const [left, other] = children;
  if (left?.pid === undefined || other?.pid === undefined) throw new Error('sleep is missing');
  try {
    const ended = new Promise((resolve) => left.on('close', (_code, signal) => resolve(signal)));
    noteProcess(processNote(work, 'left'), left.pid, silentLogger);
    const note = fs.readFileSync(processNote(work, 'left'), 'utf8');
    // A process that began at another time, and notes without useful text.
    const [, ...began] = note.split(' ');
    const earlier = `${other.pid} ${Number(began[0]) - 1} ${began[1] ?? ''}`;
    fs.writeFileSync(processNote(work, 'other'), earlier);
    fs.writeFileSync(processNote(work, 'empty'), '');
    fs.writeFileSync(join(work, 'pod.log'), 'said');
    const logger = recordingLogger();
    await endLeftProcesses(work, logger);
    expect(await ended).toBe('SIGKILL');
    expect(logger.messages).toEqual(['stopped a data mover of an earlier run']);
    expect(other.exitCode ?? other.signalCode).toBeNull();
    expect(fs.readdirSync(work)).toEqual(['pod.log']);
  } finally {
    for (const child of children) child.kill('SIGKILL');
  }
});
