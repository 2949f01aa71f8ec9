import {
  isOver,
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  type Pod,
  PODS,
  type Resource,
  waitFor,
} from '../../kube/index.ts';
import { DEV_NAMESPACE } from './dev-environment.ts';
import { printLine } from '../output/terminal.ts';

/** Milliseconds. */
export const WAIT_MS = 60_000;
const WIDTHS = [30, 12, 12];

export interface RunStatus {
  readonly phase?: string;
  readonly validationErrors?: readonly string[];
  readonly failureReason?: string;
}

type Count = readonly [done?: number | undefined, total?: number | undefined];

/** Prints each change of a Backup or Restore. Throws unless it ends as `Completed`. */
export async function followRun<S extends RunStatus>(
  client: KubeClient,
  resource: Resource<KubeObject>,
  name: string,
  countsOf: (status: S) => { readonly items: Count; readonly operations: Count },
): Promise<void> {
  printLine(row('STATUS', 'ITEMS', 'OPERATIONS'));
  let shown = '';
  const look = (now: KubeObject | undefined): RunStatus | undefined => {
    const status = ((now as { status?: S } | undefined)?.status ?? {}) as S;
    const { phase = 'New' } = status;
    const { items, operations } = countsOf(status);
    const text = row(phase, countText(items), countText(operations));
    if (text !== shown) printLine(text);
    shown = text;
    return isOver(phase) ? status : undefined;
  };
  const ref = { namespace: DEV_NAMESPACE, name };
  const { phase, validationErrors, failureReason } = await waitFor(client, resource, ref, look, {
    timeoutMs: WAIT_MS,
  });
  if (phase === 'Completed') return;
  const reason = validationErrors?.join('; ') ?? failureReason ?? '';
  throw new Error(`the ${resource.kind} ended as ${phase ?? ''}: ${reason}`);
}

const countText = ([done = 0, total = 0]: Count): string => (total === 0 ? '' : `${done}/${total}`);

const row = (...cells: string[]): string =>
  cells
    .map((cell, i) => cell.padEnd(WIDTHS[i] ?? 0))
    .join('')
    .trimEnd();

export const whenRunning = (
  client: KubeClient,
  { metadata }: { readonly metadata: ObjectRef },
): Promise<Pod> =>
  waitFor(client, PODS, metadata, (pod) => (pod?.status?.phase === 'Running' ? pod : undefined), {
    timeoutMs: WAIT_MS,
  });
