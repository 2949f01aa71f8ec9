import { UsageError } from './usage-error.ts';

/** What there is here, by the names that Velero's server gives its controllers. */
export const CONTROLLERS = [
  'backup',
  'backup-operations',
  'backup-finalizer',
  'backup-deletion',
  'gc',
  'backup-repo',
  'backup-storage-location',
  'backup-sync',
  'download-request',
  'schedule',
  'server-status-request',
] as const;
export type ControllerName = (typeof CONTROLLERS)[number];

/** Names of before, and of Velero's controllers that are one here. */
const ALIASES: Readonly<Record<string, ControllerName>> = {
  repository: 'backup-repo',
  'backup-queue': 'backup',
};

/** What `velero server --disable-controllers` takes (v1.18.3: pkg/cmd/server/config/config.go), as far as it is not here yet. */
export const CONTROLLERS_ELSEWHERE = [...['restore', 'restore-operations', 'restore-finalizer']];

/**
 * Those that run: the ones that are named, or all; without those that are disabled. Names of Velero's other controllers can be disabled, as
 * they are in its Deployment. Throws `UsageError`.
 */
export function chosenControllers(
  named: string | undefined,
  disabled: string | undefined,
): ControllerName[] {
  const chosen = named === undefined ? CONTROLLERS : namesIn(named).map(nameOf('--controllers'));
  const off = namesIn(disabled ?? '').flatMap((name) =>
    CONTROLLERS_ELSEWHERE.includes(name) ? [] : [nameOf('--disable-controllers')(name)],
  );
  const running = CONTROLLERS.filter((name) => chosen.includes(name) && !off.includes(name));
  if (running.length > 0) return running;
  throw new UsageError(`no controller is left to run; there are: ${CONTROLLERS.join(', ')}`);
}

const namesIn = (text: string): string[] =>
  text
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');

const nameOf =
  (flag: string) =>
  (name: string): ControllerName => {
    const found = CONTROLLERS.find((each) => each === name) ?? ALIASES[name];
    if (found !== undefined) return found;
    const isElsewhere = CONTROLLERS_ELSEWHERE.includes(name);
    const what = isElsewhere
      ? `the controller "${name}" of Velero's server is not here yet`
      : `there is no controller "${name}"`;
    throw new UsageError(`${flag}: ${what}; there are: ${CONTROLLERS.join(', ')}`);
  };
