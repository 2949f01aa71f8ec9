import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { prng } from '../support/golden.ts';
import { application, type RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import { assertSame, runApplication } from './tools.ts';

const CLAIMS = [{ name: 'data' }, { name: 'raw', block: true }];
const CHANGED_BYTES = 1 << 20;

interface Ended {
  readonly phase: string;
  readonly report: Readonly<Record<string, number>>;
}

/** Volumes that exist are brought back in place, mounted a second time by the real kubelet. */
export function testInPlace(
  theNode: () => RealNode,
  backUp: (name: string, namespace: string, mover: string) => Promise<unknown>,
): void {
  it('volumes of files and blocks are brought back in place, and their PVCs are left alone', async () => {
    const node = theNode();
    await runApplication(node, 'in-place', CLAIMS);
    const data = await node.volumePath('in-place', 'data');
    const raw = await node.volumePath('in-place', 'raw');
    makeTree(join(data, 'tree'), 'in-place');
    const writeRaw = (text: string, bytes: number, at: number): void => {
      const file = fs.openSync(raw, 'r+');
      fs.writeSync(file, prng(text, bytes), 0, bytes, at);
      fs.closeSync(file);
    };
    writeRaw('raw', 8 << 20, 20 << 20);
    await backUp('in-place', 'in-place', 'longshore');
    const [dataThen, rawThen] = [`${data}.then`, `${raw}.then`];
    execFileSync('cp', ['-a', data, dataThen]);
    fs.copyFileSync(raw, rawThen);
    fs.rmSync(join(data, 'tree/README'), { force: true });
    fs.appendFileSync(join(data, 'tree/data/big'), 'more');
    fs.writeFileSync(join(data, 'new'), 'new');
    writeRaw('changed', CHANGED_BYTES, 24 << 20);
    const objects = (): Promise<string> => {
      const wanted =
        'jsonpath={range .items[*]}{.metadata.uid} {.spec} {.status.phase}{"\\n"}{end}';
      return node.kubectl('get', 'pv', '-o', wanted);
    };
    const before = await objects();
    const inPlace = async (claim: string): Promise<Ended> => {
      const words = [
        'restore',
        'in-place',
        'in-place',
        `in-place/${claim}`,
        '--wait',
        '-o',
        'json',
      ];
      return JSON.parse(await node.longshore(...words)) as Ended;
    };
    await expect(inPlace('data')).rejects.toThrow('pod in-place/writer uses PVC in-place/data');
    await node.kubectl('-n', 'in-place', 'delete', 'pod', 'writer', '--grace-period=1');
    const files = await inPlace('data');
    expect(files).toMatchObject({ phase: 'Completed', report: { created: 1, changed: 1 } });
    const blocks = await inPlace('raw');
    expect(blocks).toMatchObject({ phase: 'Completed', report: { changed: 1 } });
    // Contents that the change touches, at both of its ends too.
    expect(blocks.report.bytesWritten).toBeGreaterThanOrEqual(CHANGED_BYTES);
    expect(blocks.report.bytesWritten).toBeLessThan(24 << 20);
    assertSame(dataThen, data);
    execFileSync('cmp', [rawThen, raw]);
    expect(await objects()).toBe(before);
    // Its pods use the volumes again.
    await node.applyPatiently(application('in-place', CLAIMS));
    await node.kubectl(
      ...['-n', 'in-place', 'wait', '--for=condition=Ready', 'pod/writer', '--timeout=60s'],
    );
  });
}
