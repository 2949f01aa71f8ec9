import { lookup } from '../../base/index.ts';
import {
  type ControllerName,
  CONTROLLERS,
  RESTORE_CONTROLLERS,
} from '../../server/compose/controller-names.ts';
import { UsageError } from '../usage-error.ts';

/** Old names, and Velero's controllers that are merged here. */
const ALIASES: Readonly<Record<string, ControllerName>> = {
  repository: 'backup-repo',
  'backup-queue': 'backup',
};

/** Throws `UsageError`, also if only some controllers of restores are chosen. */
export function chosenControllers(
  named: string | undefined,
  disabled: string | undefined,
): ControllerName[] {
  const chosen: readonly ControllerName[] =
    named === undefined ? CONTROLLERS : namesIn(named).map(nameOf('--controllers'));
  const off = namesIn(disabled ?? '').map(nameOf('--disable-controllers'));
  const running = CONTROLLERS.filter((name) => chosen.includes(name) && !off.includes(name));
  if (running.length === 0) {
    throw new UsageError(`no controller is left to run; there are: ${CONTROLLERS.join(', ')}`);
  }
  const missing = RESTORE_CONTROLLERS.filter((name) => !running.includes(name));
  if (missing.length === 0 || missing.length === RESTORE_CONTROLLERS.length) return running;
  throw new UsageError(
    `restores need all of ${RESTORE_CONTROLLERS.join(', ')}, and ${missing.join(', ')} would not run: name all of them, or none`,
  );
}

const namesIn = (text: string): string[] =>
  text
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');

const nameOf =
  (flag: string) =>
  (name: string): ControllerName => {
    const found = CONTROLLERS.find((each) => each === name) ?? lookup(ALIASES, name);
    if (found !== undefined) return found;
    throw new UsageError(
      `${flag}: there is no controller "${name}"; there are: ${CONTROLLERS.join(', ')}`,
    );
  };
