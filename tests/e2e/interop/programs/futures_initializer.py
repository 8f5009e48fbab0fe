"""Workers that keep their own state."""

from concurrent.futures import ProcessPoolExecutor

scale = 1


def set_scale(value):
    global scale
    scale = value


def scaled(n):
    return scale * n


if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=set_scale, initargs=(10,)) as executor:
        print(list(executor.map(scaled, range(6))))
