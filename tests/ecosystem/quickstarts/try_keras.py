"""Keras 3 on its JAX back end: functional and subclassed models, convolutions, recurrences, attention, files."""

import os
import tempfile

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from keras import layers, ops
from parts import show

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)

x = rng.normal(size=(64, 8)).astype("float32")
y = (x[:, :3].sum(1) > 0).astype("int32")

inputs = keras.Input((8,))
hidden = layers.Dropout(0.1)(layers.Dense(16, activation="relu")(inputs))
outputs = layers.Dense(2, activation="softmax")(layers.BatchNormalization()(hidden))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=0)
show("functional fit", *(history.history[key] for key in ("loss", "val_loss", "accuracy")))
show("functional evaluate", model.evaluate(x, y, verbose=0), model.predict(x[:3], verbose=0))


class Regressor(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.norm = layers.LayerNormalization()
        self.last = layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.norm(self.first(x)))


regressor = Regressor()
regressor.compile(
    keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 20), momentum=0.9), "mse", metrics=["mae"]
)
history = regressor.fit(x, x[:, :1] * 2, batch_size=32, epochs=3, shuffle=False, verbose=0)
show("subclassed fit", history.history["loss"], history.history["mae"])

images = rng.normal(size=(16, 12, 12, 3)).astype("float32")
convolutions = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        layers.Conv2D(4, 3, padding="same", activation="gelu"),
        layers.MaxPooling2D(2),
        layers.SeparableConv2D(6, 3, padding="same", strides=2),
        layers.AveragePooling2D(2, padding="same"),
        layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
        layers.DepthwiseConv2D(3, padding="valid"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(2),
    ]
)
show("convolutions", convolutions(images[:2]))
convolutions.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = convolutions.fit(images, np.arange(16) % 2, batch_size=8, epochs=2, shuffle=False, verbose=0)
show("convolutions fit", history.history["loss"])

words = rng.integers(1, 20, size=(8, 6))
words[:, 4:] = 0
recurrent = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(20, 5, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.GRU(3),
        layers.Dense(1, activation="sigmoid"),
    ]
)
recurrent.compile("rmsprop", "binary_crossentropy")
history = recurrent.fit(words, np.arange(8) % 2, batch_size=4, epochs=2, shuffle=False, verbose=0)
show("recurrences", history.history["loss"], recurrent.predict(words, verbose=0))

sequence = keras.Input((5, 8))
attended = layers.MultiHeadAttention(2, 4)(sequence, sequence, use_causal_mask=True)
attention = keras.Model(sequence, layers.Conv1D(3, 2, padding="causal")(layers.Add()([sequence, attended])))
show("attention", attention(x[:40].reshape(8, 5, 8)))

with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras")
    convolutions.save_weights(f"{folder}/convolutions.weights.h5")
    convolutions.load_weights(f"{folder}/convolutions.weights.h5")
show("save and load", loaded.predict(x[:3], verbose=0), convolutions.predict(images[:2], verbose=0))

trainable, state = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def loss(trainable, state, x, y):
    out, state = model.stateless_call(trainable, state, x, training=False)
    return ops.mean(keras.losses.sparse_categorical_crossentropy(y, out)), state


(value, _), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(trainable, state, x, y)
show("stateless", value, *(ops.norm(g) for g in grads))

spectrum = ops.stft(ops.reshape(x[:8], (2, 32)), 16, 8, 16)
show(
    "operations",
    *spectrum,
    ops.segment_sum(x[:6], np.array([0, 1, 0, 2, 1, 0]), 3),
    ops.image.resize(images[:1], (5, 7)),
    ops.logsumexp(x, axis=-1)[:4],
    *ops.top_k(x[:2], 2),
    ops.scatter_update(ops.zeros((3, 2)), [[0, 1], [2, 0]], [1.0, 2.0]),
)
